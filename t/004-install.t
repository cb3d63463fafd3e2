# After `make install`, nginx loads a stripped module; `make uninstall` leaves no file.
use strict;
use warnings;

use lib 't/lib';
use Cwd qw(abs_path);
use File::Find qw(find);
use File::Path qw(make_path);
use RateLimit qw(slurp start_nginx);
use Test::More;

# make install installs the module of `make`, which fits no other nginx.
my $built = abs_path('build/ngx_http_rate_limit_module.so') // '';
plan skip_all => 'another build of the module is tested' unless $built && $ENV{RL_MODULE} eq $built;

my $dir   = "$ENV{RL_DIR}/root";
my $nginx = $ENV{TEST_NGINX_BINARY};

# Runs scripts/install, and returns its output, without the folder that stands for the root.
sub install {
    my (@words) = @_;
    my $said = qx(scripts/install @words $nginx $dir 2>&1);
    is $?, 0, "scripts/install @words" or diag $said;
    return $said =~ s/\Q$dir\E//gr;
}

# The files and links below the folder.
sub installed {
    my @files;
    find({ no_chdir => 1, wanted => sub { push @files, s{^\Q$dir\E}{}r if -f || -l } }, $dir);
    return [ sort @files ];
}

my $options = qx($nginx -V 2>&1);
my %path    = map { $_ => $options =~ / --$_=(\S+)/ ? $1 : undef } qw(prefix modules-path conf-path);
plan skip_all => 'this nginx has no --prefix, --modules-path or --conf-path' if grep { !defined } values %path;
my $so      = "$path{'modules-path'}/ngx_http_rate_limit_module.so";
my $load    = "$path{prefix}/modules-available/50-mod-http-rate-limit.conf";
my $enabled = $path{'conf-path'} =~ s{[^/]*$}{modules-enabled}r;

make_path($dir);
my $said = install();
is_deeply installed(), [ sort $so, $load ], 'the module and a file that loads it';
is slurp("$dir$load"), "load_module $so;\n", 'the file loads the module';
like $said, qr/^    include \Q$load\E;$/m, 'the next step is to include the file';
unlike qx(readelf --sections --wide $dir$so), qr/\.debug_|\.symtab/, 'the module is stripped';
cmp_ok -s "$dir$so", '<', 3_000_000, 'so its file is small';
{
    local $ENV{RL_MODULE} = "$dir$so";
    my $running = start_nginx(http => 'rate_limit_zone k zone=z:1m rate=1r/d;',
        server => 'location = / { rate_limit zone=z; empty_gif; }');
    is join(' ', map { $running->get('/')->{status} } 1 .. 2), '200 429', 'the stripped module limits';
}

make_path("$dir$enabled");
like install(), qr/^    ln -s \Q$load $enabled\E\/$/m, 'with modules-enabled, the next step is a link';
symlink $load, "$dir$enabled/50-mod-http-rate-limit.conf" or die "symlink: $!\n";
like install('--uninstall'), qr/^Remove the directives rate_limit\*/m, 'uninstall says what to do next';
is_deeply installed(), [], 'and leaves no file, and no link to one';

done_testing;
