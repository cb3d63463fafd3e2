# Pages in a headless Chromium or Firefox. A test program uses one browser of each kind, which starts at the first call.
#
#   use lib 't/lib';
#   use RateLimit::Browser qw(open_page);
#
#   my $page = open_page('http://127.0.0.1:8080/', viewport => [ 360, 740 ], colorScheme => 'dark');
#   $page->do('#save', 'click');
#   wait_for('it to be saved', sub { $page->text('#state') eq 'saved' });
#
# FUNCTIONS
#   open_page($url, %options)   a page with its own cookies and size. Options are those of Playwright's newContext;
#                               viewport may be [width, height]; browser => 'firefox' is for Firefox
#
# METHODS
#   status, url                 of the answer; the address after redirects
#   text($selector)             the text that an element shows; '' if there is none
#   texts($selector)            the texts of all matching elements
#   visible($selector)          how many matching elements are visible
#   do($selector, $method, @values)
#                               a method of Playwright's Locator, which waits for the element: click, fill, press, focus
#                               …
#   press(@keys)                keys, one after the other, to the focused element
#   type($text)
#   call($method, @values)      a method of Playwright's Page
#   evaluate($function, $value) what a function in JavaScript returns
#   problems                    unwanted events since the last call: errors and warnings on the console
#                               (also those of its Content-Security-Policy), dialogs, requests to other origins
#   barriers                    what axe-core finds against accessibility on the page as it is
#   failures                    the requests since the last call that got no response, and why
#   close
package RateLimit::Browser;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use File::Basename qw(dirname);
use IPC::Open2 qw(open2);
use JSON::PP ();

our @EXPORT_OK = qw(open_page);

my $json  = JSON::PP->new->canonical->utf8->allow_nonref;
my $owner = $$;
my ($node, $from_node, $to_node);

sub ask {
    my (%request) = @_;
    $node //= open2($from_node, $to_node, 'node', dirname(__FILE__) . '/../browser.js');
    print {$to_node} $json->encode(\%request), "\n";
    $to_node->flush;
    my $answer = $json->decode(<$from_node> // croak 'the browser has ended');
    croak "$request{operation}: $answer->{error}" if defined $answer->{error};
    return $answer->{result};
}

sub open_page {
    my ($url, %options) = @_;
    my $size = $options{viewport};
    $options{viewport} = { width => $size->[0], height => $size->[1] } if ref $size eq 'ARRAY';
    return bless ask(operation => 'open', url => $url, options => \%options), __PACKAGE__;
}

sub status { my ($self) = @_; return $self->{status} }
sub url    { my ($self) = @_; return $self->{url} }

sub do {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self, $selector, $method, @values) = @_;
    return ask(operation => 'locator', page => $self->{page}, selector => $selector, method => $method,
        values => \@values);
}

sub texts {
    my ($self, $selector) = @_;
    return @{ $self->do($selector, 'allInnerTexts') };
}

sub text {
    my ($self, $selector) = @_;
    my ($first) = $self->texts($selector);
    return $first // '';
}

sub visible {
    my ($self, $selector) = @_;
    return $self->do("$selector >> visible=true", 'count');
}

sub press {
    my ($self, @keys) = @_;
    ask(operation => 'keyboard', page => $self->{page}, method => 'press', values => [$_]) for @keys;
    return;
}

sub type {
    my ($self, $text) = @_;
    return ask(operation => 'keyboard', page => $self->{page}, method => 'type', values => [$text]);
}

sub call {
    my ($self, $method, @values) = @_;
    return ask(operation => 'page', page => $self->{page}, method => $method, values => \@values);
}

sub evaluate {
    my ($self, $code, $value) = @_;
    return ask(operation => 'evaluate', page => $self->{page}, code => $code, value => $value);
}

sub problems {
    my ($self) = @_;
    return @{ ask(operation => 'problems', page => $self->{page}) };
}

sub barriers {
    my ($self) = @_;
    return @{ ask(operation => 'barriers', page => $self->{page}) };
}

sub failures {
    my ($self) = @_;
    return @{ ask(operation => 'failures', page => $self->{page}) };
}

sub close {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self) = @_;
    return ask(operation => 'close', page => $self->{page});
}

END {
    if ($node && $$ == $owner) {
        local $? = 0;
        CORE::close $to_node;
        waitpid $node, 0;
    }
}

1;
