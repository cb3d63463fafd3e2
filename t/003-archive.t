# The source archive is reproducible: the same files give the same bytes, with git and without.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(slurp);
use Test::More;

plan skip_all => 'this tree is not a clone of a repository' unless -e '.git';

my $dir = $ENV{RL_DIR};
chomp(my $name = qx(scripts/dist name));

# Builds an archive in a tree, with an environment that must not matter. Returns its SHA-256, as scripts/dist prints it.
sub archive {
    my ($tree, $file, $environment) = @_;
    my ($hash) = qx(cd $tree && umask 077 && $environment scripts/dist $dir/$file) =~ /^([0-9a-f]{64}) /;
    return $hash;
}

my $first = archive('.', 'first.tar.gz', 'TZ=Asia/Tokyo LC_ALL=C.UTF-8');
ok $first, 'an archive';
is qx(sha256sum <$dir/first.tar.gz), "$first  -\n", 'its hash is printed';
is archive('.', 'second.tar.gz', 'TZ=America/Lima LC_ALL=C'), $first, 'a second archive is the same';

is system("tar -C $dir -xf $dir/first.tar.gz && touch -d '2001-01-01' $dir/$name/Makefile"), 0, 'it unpacks';
mkdir "$dir/$name/build";
ok !-e "$dir/$name/.git", 'it has no git';
is archive("$dir/$name", 'third.tar.gz', ''), $first, 'an archive of the unpacked tree is the same';

my @files   = map  {s{^[^/]*/}{}r} grep { !m{/$} } split /\n/, qx(tar -tf $dir/first.tar.gz);
my @tracked = split /\n/, qx(git ls-tree -r --name-only HEAD);
is_deeply [ sort @files ], [ sort @tracked ], 'it has all files of the last commit';
is_deeply [ grep { !m{^[-d](?:rwxr-xr-x|rw-r--r--) 0/0 } } split /\n/, qx(tar -tvf $dir/first.tar.gz --numeric-owner) ], [],
    'owners and modes are constant';

open my $out, '>>', "$dir/$name/README.md" or die "README.md: $!\n";
print {$out} "another line\n";
close $out or die "README.md: $!\n";
isnt archive("$dir/$name", 'fourth.tar.gz', ''), $first, 'other files give another archive';

done_testing;
