//! URIs that a client accepts, and the error of each that it does not.

use std::path::PathBuf;

use super::{Address, NbdUri, UriError};

fn tcp(host: &str, port: u16, name: &str) -> Result<NbdUri, UriError> {
    let address = Address::Tcp { host: host.to_owned(), port };
    Ok(NbdUri { address, name: name.to_owned() })
}

fn unix(path: &str, name: &str) -> Result<NbdUri, UriError> {
    let address = Address::Unix { path: PathBuf::from(path) };
    Ok(NbdUri { address, name: name.to_owned() })
}

#[test]
fn tcp_uris_have_a_host_a_port_and_a_name() {
    let parse = |text: &str| text.parse::<NbdUri>();
    assert_eq!(parse("nbd://example.com"), tcp("example.com", 10809, ""));
    assert_eq!(parse("nbd://example.com/"), tcp("example.com", 10809, ""));
    assert_eq!(parse("NBD://example.com:/disk"), tcp("example.com", 10809, "disk"));
    assert_eq!(parse("nbd://example.com//disk"), tcp("example.com", 10809, "/disk"));
    assert_eq!(parse("nbd://[::1]:1234/hello%20world"), tcp("::1", 1234, "hello world"));
    assert_eq!(parse("nbd://[::1]"), tcp("::1", 10809, ""));
}

#[test]
fn unix_uris_have_a_socket() {
    let parse = |text: &str| text.parse::<NbdUri>();
    assert_eq!(parse("nbd+unix:///disk?socket=/run/a%20b"), unix("/run/a b", "disk"));
    assert_eq!(parse("nbd+unix://?socket=nbd.sock"), unix("nbd.sock", ""));
    assert_eq!(parse("nbd+unix:///?socket=%00/abstract"), unix("\0/abstract", ""));
}

#[test]
fn every_error_names_what_is_wrong() {
    let error = |text: &str| text.parse::<NbdUri>().unwrap_err();
    let own = |text: &str| text.to_owned();
    assert_eq!(error("disk"), UriError::Scheme(own("disk")));
    assert_eq!(error("http://a/b"), UriError::Scheme(own("http://a/b")));
    assert_eq!(error("nbds://a"), UriError::Tls(own("nbds://a")));
    assert_eq!(error("nbd:///disk"), UriError::Host(own("")));
    assert_eq!(error("nbd://[::1"), UriError::Host(own("[::1")));
    assert_eq!(error("nbd://[::1]9"), UriError::Host(own("[::1]9")));
    assert_eq!(error("nbd+unix://h/?socket=a"), UriError::Host(own("h")));
    assert_eq!(error("nbd://me@a"), UriError::User(own("me")));
    assert_eq!(error("nbd://a:0"), UriError::Port(own("0")));
    assert_eq!(error("nbd://a:+80"), UriError::Port(own("+80")));
    assert_eq!(error("nbd://a:65536"), UriError::Port(own("65536")));
    assert_eq!(error("nbd://a/%2"), UriError::Percent(own("%2")));
    assert_eq!(error("nbd://a/%+1"), UriError::Percent(own("%+1")));
    assert_eq!(error("nbd://a/%ff"), UriError::Percent(own("%ff")));
    assert_eq!(error("nbd://a/%00"), UriError::Name(own("\0")));
    assert_eq!(error("nbd+unix:///a"), UriError::NoSocket(own("nbd+unix:///a")));
    assert_eq!(error("nbd+unix:///?socket="), UriError::NoSocket(own("nbd+unix:///?socket=")));
    assert_eq!(error("nbd://a/?x=1"), UriError::Parameter(own("x")));
    let twice = "nbd+unix:///?socket=a&socket=b";
    assert_eq!(error(twice), UriError::Parameter(own("socket")));
    assert_eq!(error("nbd://a/b#c"), UriError::Fragment(own("c")));
}

#[test]
fn addresses_are_shown_as_they_are_written() {
    let shown = |text: &str| text.parse::<NbdUri>().unwrap().address.to_string();
    assert_eq!(shown("nbd://[::1]:7"), "[::1]:7");
    assert_eq!(shown("nbd://a"), "a:10809");
    assert_eq!(shown("nbd+unix:///?socket=/s"), "unix:/s");
}

#[test]
fn names_have_4096_bytes_at_most_and_any_byte_may_be_encoded() {
    let parse = |name: &str| format!("nbd://a/{name}").parse::<NbdUri>();
    let (longest, longer) = ("a".repeat(4096), "a".repeat(4097));
    assert_eq!(parse(&longest), tcp("a", 10809, &longest));
    assert_eq!(parse(&longer), Err(UriError::Name(longer.clone())));
    assert_eq!(parse("%2F%7e%4a%c3%A9"), tcp("a", 10809, "/~J\u{e9}"));
    let many = "nbd+unix:///?&socket=a&".parse::<NbdUri>();
    assert_eq!(many, unix("a", ""));
    assert_eq!("nbd://a:1".parse::<NbdUri>(), tcp("a", 1, ""));
    assert_eq!("nbd://a?&".parse::<NbdUri>(), tcp("a", 10809, ""));
}
