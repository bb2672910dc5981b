//! NBD URIs: where a server listens, and the name of an export on it.
//!
//! Owns the parsing of `nbd://host[:port]/name` and `nbd+unix:///name?socket=/path`. Called with an
//! argument of the command line; calls nothing.
//!
//! Invariants: what is not understood is an error that names it, never ignored; the name and the
//! socket are percent-decoded exactly once.
//! Specification: `doc/uri.md`; generic syntax: RFC 3986.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::wire::{PORT_DEFAULT, STRING_BYTES_MAX};
use thiserror::Error;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// Name or address, without the brackets of IPv6.
        host: String,
        /// The port, 10809 unless given.
        port: u16,
    },
    /// A Unix socket; a path that begins with NUL is in the abstract namespace.
    Unix {
        /// The socket's path.
        path: PathBuf,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix { path } => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A server's address and an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdUri {
    /// Where the server listens.
    pub address: Address,
    /// Name of the export, empty for the default one.
    pub name: String,
}

/// Why a text is not an NBD URI this client can use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UriError {
    /// Not `nbd://` or `nbd+unix://`.
    #[error("unknown scheme in {uri:?}; write nbd://host/name or nbd+unix:///name?socket=/path")]
    Scheme {
        /// The whole text.
        uri: String,
    },
    /// `nbds://` or `nbds+unix://`.
    #[error("{uri:?} asks for TLS, which this client does not have; use nbd: or nbd+unix:")]
    Tls {
        /// The whole text.
        uri: String,
    },
    /// Something before an `@`.
    #[error("a user name ({user:?}) is of use only with TLS; remove it")]
    User {
        /// What is before the `@`.
        user: String,
    },
    /// No host in a TCP URI, or one in a Unix URI.
    #[error("{authority:?} is no host for this scheme; nbd: needs one, nbd+unix: has none")]
    Host {
        /// What is between the slashes.
        authority: String,
    },
    /// A port that is not 1 to 65535.
    #[error("{port:?} is not a port from 1 to 65535")]
    Port {
        /// What is after the colon.
        port: String,
    },
    /// A `%` without two hexadecimal digits, or text that is not UTF-8 after decoding.
    #[error("bad percent-encoding in {text:?}")]
    Percent {
        /// The part as written.
        text: String,
    },
    /// An export name that is too long or has a NUL.
    #[error("the export name {name:?} is longer than 4096 bytes or has a NUL")]
    Name {
        /// The name after decoding.
        name: String,
    },
    /// No `socket=` in a Unix URI, or an empty one.
    #[error("{uri:?} names no socket; add ?socket=/path")]
    NoSocket {
        /// The whole text.
        uri: String,
    },
    /// A query parameter that is not understood, or given twice.
    #[error("unknown or repeated parameter {parameter:?}; nbd+unix: takes one socket=, nbd: none")]
    Parameter {
        /// The parameter's name.
        parameter: String,
    },
    /// A `#` with something after it.
    #[error("an NBD URI has no fragment, but {fragment:?} follows the #")]
    Fragment {
        /// What is after the `#`.
        fragment: String,
    },
}

impl std::str::FromStr for NbdUri {
    type Err = UriError;

    fn from_str(uri: &str) -> Result<Self, UriError> {
        let whole = || uri.to_owned();
        let (scheme, rest) = uri.split_once("://").ok_or(UriError::Scheme { uri: whole() })?;
        if let Some((_, fragment)) = rest.split_once('#') {
            return Err(UriError::Fragment { fragment: fragment.to_owned() });
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let name = export_name(path)?;
        let address = match scheme.to_ascii_lowercase().as_str() {
            "nbd" => {
                if let Some(parameter) = parameters(query).next() {
                    return Err(unknown_parameter(parameter.0));
                }
                tcp(authority)?
            }
            "nbd+unix" if authority.is_empty() => {
                Address::Unix { path: socket(query)?.ok_or(UriError::NoSocket { uri: whole() })? }
            }
            "nbd+unix" => return Err(UriError::Host { authority: authority.to_owned() }),
            "nbds" | "nbds+unix" => return Err(UriError::Tls { uri: whole() }),
            _ => return Err(UriError::Scheme { uri: whole() }),
        };
        Ok(NbdUri { address, name })
    }
}

fn export_name(path: &str) -> Result<String, UriError> {
    let name = String::from_utf8(percent_decode(path)?)
        .map_err(|_| UriError::Percent { text: path.to_owned() })?;
    if name.len() > STRING_BYTES_MAX || name.contains('\0') {
        return Err(UriError::Name { name });
    }
    Ok(name)
}

fn tcp(authority: &str) -> Result<Address, UriError> {
    if let Some((user, _)) = authority.rsplit_once('@') {
        return Err(UriError::User { user: user.to_owned() });
    }
    let bad_host = || UriError::Host { authority: authority.to_owned() };
    let (host, rest) = match authority.strip_prefix('[') {
        Some(inside) => inside.split_once(']').ok_or_else(bad_host)?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = match rest {
        // RFC 3986 allows a colon with nothing after it.
        "" | ":" => PORT_DEFAULT,
        _ => port(rest.strip_prefix(':').ok_or_else(bad_host)?)?,
    };
    if host.is_empty() {
        return Err(bad_host());
    }
    let host = String::from_utf8(percent_decode(host)?).map_err(|_| bad_host())?;
    Ok(Address::Tcp { host, port })
}

fn port(digits: &str) -> Result<u16, UriError> {
    let decimal = digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse() {
        Ok(port) if decimal && port != 0 => Ok(port),
        _ => Err(UriError::Port { port: digits.to_owned() }),
    }
}

fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let given = query.split('&').filter(|pair| !pair.is_empty());
    given.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn unknown_parameter(parameter: &str) -> UriError {
    UriError::Parameter { parameter: parameter.to_owned() }
}

fn socket(query: &str) -> Result<Option<PathBuf>, UriError> {
    let mut path = None;
    for (key, value) in parameters(query) {
        if key != "socket" || path.is_some() {
            return Err(unknown_parameter(key));
        }
        path = Some(PathBuf::from(OsString::from_vec(percent_decode(value)?)));
    }
    Ok(path.filter(|path| !path.as_os_str().is_empty()))
}

fn percent_decode(text: &str) -> Result<Vec<u8>, UriError> {
    let bad = || UriError::Percent { text: text.to_owned() };
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit().ok_or_else(bad)?, digit().ok_or_else(bad)?);
        out.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
