//! From a spec to the settings of an NBD drive.
//!
//! Called by `open.rs`; reads no file and asks no server. An error names key and value.

use millrace_tls::Identity;

use super::{CONNECTIONS_MAX, NbdConfig, NbdTls};
use crate::open::missing;
use crate::spec::{Spec, SpecError};

/// The settings of a spec, all values checked.
///
/// # Errors
/// A value that makes no sense, or a key that is missing.
pub(crate) fn config_of(spec: &Spec) -> Result<NbdConfig, SpecError> {
    let Some(text) = spec.get("uri") else { return Err(missing(spec, "uri")) };
    // What the protocol crate calls a URI has no TLS: that is this drive's affair.
    let (plain, secure) = match text.strip_prefix("nbds") {
        Some(rest) => (format!("nbd{rest}"), true),
        None => (text.to_owned(), false),
    };
    let uri = plain.parse().map_err(|error| spec.invalid("uri", &format!("{error}")))?;
    let default = NbdConfig::new(uri, text.to_owned());
    Ok(NbdConfig {
        connections: spec.number("connections", CONNECTIONS_MAX)?,
        depth: spec.depth()?.unwrap_or(default.depth),
        reconnect_ns: spec.time("reconnect")?.unwrap_or(default.reconnect_ns),
        write_through: spec.switch("write-through")?.unwrap_or(default.write_through),
        read_only: spec.switch("read-only")?.unwrap_or(default.read_only),
        tls: if secure { Some(tls_of(spec)?) } else { no_tls(spec)? },
        ..default
    })
}

/// The keys of TLS, of a spec whose URI asks for it.
fn tls_of(spec: &Spec) -> Result<NbdTls, SpecError> {
    let Some(ca) = spec.get("tls-ca") else { return Err(missing(spec, "tls-ca")) };
    let identity = match (spec.get("tls-certificate"), spec.get("tls-key")) {
        (Some(certificate), Some(key)) => {
            Some(Identity { certificate: certificate.into(), key: key.into() })
        }
        (None, None) => None,
        (Some(_), None) => return Err(missing(spec, "tls-key")),
        (None, Some(_)) => return Err(missing(spec, "tls-certificate")),
    };
    Ok(NbdTls { ca: ca.into(), identity, hostname: spec.get("tls-hostname").map(Into::into) })
}

/// Keys of TLS that would do nothing are refused: data would go out in plaintext.
fn no_tls(spec: &Spec) -> Result<Option<NbdTls>, SpecError> {
    let keys = ["tls-ca", "tls-certificate", "tls-key", "tls-hostname"];
    match keys.into_iter().find(|key| spec.get(key).is_some()) {
        Some(key) => Err(spec.invalid(key, "it goes with a uri= of nbds: or nbds+unix:")),
        None => Ok(None),
    }
}
