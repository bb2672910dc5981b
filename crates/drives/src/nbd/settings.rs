//! Settings of an NBD drive, parsed from a spec, and the driver's row in the driver table.
//!
//! No file is read and no server is contacted. Errors name the key and its value.

use millrace_block::QueueKind;
use std::time::Duration;

use super::{CONNECTIONS_MAX, ClientFiles, NbdConfig, NbdTls, OnServerRestart, TlsIdentity};
use crate::open::DriverRow;
use crate::spec::{Spec, SpecError};

pub(crate) const ROW: DriverRow = DriverRow {
    name: "nbd",
    keys: "uri connections depth reconnect write-through on-server-restart read-only \
           tls-ca tls-certificate tls-key tls-hostname",
    main_key: None,
    path_keys: "tls-ca tls-certificate tls-key",
    queues: QueueKind::OwnerOnly,
    settings: |spec| Ok(Box::new(config_of(spec)?)),
};

fn config_of(spec: &Spec) -> Result<NbdConfig, SpecError> {
    let Some(text) = spec.get("uri") else { return Err(spec.missing("uri")) };
    // The protocol crate parses only URIs without TLS, so `nbds:` is replaced by `nbd:` before the
    // call.
    let (plain, secure) = match text.strip_prefix("nbds") {
        Some(rest) => (format!("nbd{rest}"), true),
        None => (text.to_owned(), false),
    };
    let uri = plain.parse().map_err(|error| spec.invalid("uri", &format!("{error}")))?;
    let default = NbdConfig::new(uri, text.to_owned());
    let restart = [("go-on", OnServerRestart::GoOn), ("flush-error", OnServerRestart::FlushError)];
    Ok(NbdConfig {
        connections: spec.number("connections", CONNECTIONS_MAX)?,
        depth: spec.depth()?.unwrap_or(default.depth),
        reconnect: spec.time("reconnect")?.map_or(default.reconnect, Duration::from_nanos),
        write_through: spec.switch("write-through")?.unwrap_or(default.write_through),
        on_server_restart: spec.choice("on-server-restart", &restart)?.unwrap_or_default(),
        read_only: spec.switch("read-only")?.unwrap_or(default.read_only),
        tls: if secure { Some(tls_of(spec)?) } else { no_tls(spec)? },
        ..default
    })
}

fn refuse_tls(spec: &Spec, key: &str) -> Result<(), SpecError> {
    millrace_tls::REFUSAL.map_or(Ok(()), |why| Err(spec.invalid(key, why)))
}

fn tls_of(spec: &Spec) -> Result<NbdTls, SpecError> {
    refuse_tls(spec, "uri")?;
    let Some(ca) = spec.get("tls-ca") else { return Err(spec.missing("tls-ca")) };
    let identity = match (spec.get("tls-certificate"), spec.get("tls-key")) {
        (Some(certificate), Some(key)) => {
            Some(TlsIdentity { certificate: certificate.into(), key: key.into() })
        }
        (None, None) => None,
        (Some(_), None) => return Err(spec.missing("tls-key")),
        (None, Some(_)) => return Err(spec.missing("tls-certificate")),
    };
    let files = ClientFiles { ca: ca.into(), identity };
    Ok(NbdTls { files, hostname: spec.get("tls-hostname").map(Into::into) })
}

/// Refuses settings such as `tls-ca` without a TLS URI: the data would be sent in plaintext.
fn no_tls(spec: &Spec) -> Result<Option<NbdTls>, SpecError> {
    match spec.first_of("tls-ca tls-certificate tls-key tls-hostname") {
        Some(key) => refuse_tls(spec, key)
            .and(Err(spec.invalid(key, "TLS needs a uri= that begins with nbds: or nbds+unix:"))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<(), String> {
        let spec = text.parse::<Spec>().unwrap();
        config_of(&spec).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn tls_is_what_uri_says_or_refused_where_it_was_not_built_in() {
        let (plain, secure) = ("nbd:uri=nbd://h/x", "nbd:uri=nbds://h/x,tls-ca=/ca");
        assert_eq!(said(plain), Ok(()));
        let beside = said(&format!("{plain},tls-ca=/ca")).unwrap_err();
        match cfg!(feature = "tls") {
            true => {
                assert_eq!(said(secure), Ok(()));
                assert!(
                    beside.contains("TLS needs a uri= that begins with nbds: or nbds+unix:"),
                    "{beside}"
                );
            }
            false => {
                let refused = "this program was built without TLS; build it with the feature `tls`";
                assert!(said(secure).unwrap_err().contains(refused));
                assert!(beside.contains("tls-ca") && beside.contains(refused), "{beside}");
            }
        }
    }
}
