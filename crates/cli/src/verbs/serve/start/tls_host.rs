//! Chooses the host name in the commands that `serve` prints for clients of a listener with TLS.
//!
//! A client compares the host of a URI with the names in the server's certificate. If the
//! certificate does not contain the listener's address, the client would refuse a URI with the
//! address.

use std::net::{IpAddr, SocketAddr};

use millrace::{Listen, PeerNames};
use millrace_console::visible;

use crate::config::ListenerPlan;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsHost {
    /// Name from the certificate, to be used as host in clients' URIs. If `None`, the URIs contain
    /// the listener's address.
    pub host: Option<String>,
    pub remark: String,
}

pub fn of(listener: &ListenerPlan) -> TlsHost {
    let (Listen::Tcp(address), Some(tls)) = (&listener.address, &listener.tls) else {
        return TlsHost::default();
    };
    // If the certificate cannot be read, its names are unknown. The URIs that `serve` prints for
    // clients then contain the listener's address instead. The read error was reported earlier.
    tls.files.identity.names().map_or_else(TlsHost::default, |names| choose(*address, &names))
}

/// Chooses a certificate name for clients' URIs: the listener's IP address, a loopback name if the
/// listener accepts loopback connections, or else the first name that a URI can contain.
fn choose(address: SocketAddr, names: &PeerNames) -> TlsHost {
    let has = |name: &str| names.alternatives.iter().any(|one| one.eq_ignore_ascii_case(name));
    let local: &[&str] = match address.ip() {
        // A listener on the wildcard address also accepts loopback connections, so the host may be
        // a loopback name.
        ip if ip.is_unspecified() => &["localhost", "127.0.0.1", "::1"],
        IpAddr::V4(ip) if ip.is_loopback() => &["localhost"],
        IpAddr::V6(ip) if ip.is_loopback() => &["localhost"],
        _ => &[],
    };
    let own = address.ip().to_string();
    if !address.ip().is_unspecified() && has(&own) {
        return TlsHost::default();
    }
    if let Some(name) = local.iter().find(|name| has(name)) {
        return TlsHost { host: Some(bracketed(name)), remark: String::new() };
    }
    let what = if address.ip().is_unspecified() { "localhost" } else { &own };
    match names.alternatives.iter().find(|name| is_host(name)) {
        Some(name) => TlsHost {
            host: Some(bracketed(name)),
            remark: format!(
                "The certificate does not name {what}, so clients must reach this host as {}.",
                visible(name)
            ),
        },
        None => TlsHost {
            host: None,
            remark: format!(
                "The certificate does not name {what}, or any other host, so clients will refuse \
                 it: make one with subjectAltName."
            ),
        },
    }
}

/// Returns true for an IP address or the name of one host, and not for mail, URI or wildcard names.
fn is_host(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    name.parse::<IpAddr>().is_ok() || (!name.is_empty() && name.bytes().all(plain))
}

fn bracketed(name: &str) -> String {
    if name.contains(':') { format!("[{name}]") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(address: &str, alternatives: &[&str]) -> (String, String) {
        let alternatives = alternatives.iter().map(|&name| name.to_owned()).collect();
        let names = PeerNames { common_name: Some("server".to_owned()), alternatives };
        let TlsHost { host, remark } = choose(address.parse().unwrap(), &names);
        (host.unwrap_or_default(), remark)
    }

    #[test]
    fn an_address_that_the_certificate_names_stays() {
        let stays = (String::new(), String::new());
        assert_eq!(chosen("127.0.0.1:7", &["localhost", "127.0.0.1"]), stays);
        assert_eq!(chosen("192.0.2.1:7", &["a.test", "192.0.2.1"]), stays);
    }

    #[test]
    fn loopback_and_wildcard_addresses_resolve_to_this_host() {
        for (address, names, host) in [
            ("127.0.0.1:7", &["a.test", "LOCALHOST"][..], "localhost"),
            ("[::1]:7", &["localhost"], "localhost"),
            ("0.0.0.0:7", &["a.test", "127.0.0.1"], "127.0.0.1"),
            ("[::]:7", &["::1"], "[::1]"),
        ] {
            assert_eq!(chosen(address, names), (host.to_owned(), String::new()), "{address}");
        }
    }

    #[test]
    fn taken_name_is_replaced_with_a_remark_or_refused() {
        let names = ["me@a.test", "*.a.test", "https://a.test/", "b.a.test", "c.a.test"];
        let (host, remark) = chosen("127.0.0.1:7", &names);
        assert_eq!(host, "b.a.test");
        assert_eq!(
            remark,
            "The certificate does not name 127.0.0.1, so clients must reach this host as b.a.test."
        );
        let (host, remark) = chosen("0.0.0.0:7", &names[..3]);
        assert_eq!(host, "");
        assert!(remark.starts_with("The certificate does not name localhost, or any"), "{remark}");
    }
}
