package RateLimit::Bench::Report;
use strict; use warnings;
use Exporter qw(import);
use JSON::PP;
our @EXPORT_OK = qw(write_report);
sub write_report { my ($r,%o)=@_; open my $f,'>',"$o{out}/results.json"; print {$f} JSON::PP->new->pretty->canonical->encode($r); return JSON::PP->new->pretty->canonical->encode({map {$_->{name}=>{map {my $n=$_; $n=>{ map {$_=>join ' ', map {sprintf '%.3f',$_} @{$_[0]{groups}[0]{summary}{$n}{$_}}} qw(rate ratio server_us added_us redis_us p99_ms)}} @{$_->{contestants}}}} @{$r->{groups}}}) ; }
1;
