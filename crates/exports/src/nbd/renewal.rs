//! Certificate reload: a thread that checks certificate files and expiry dates once a second.
//!
//! I/O threads never read these files, since a file system may hang: each client gets the
//! certificates loaded last.
//!
//! Invariant: no other thread waits for the reloading thread. After the server stopped, the thread
//! ends at its next check. It holds no reference to the server's state.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime};

use millrace_block::{Error, ErrorKind};
use millrace_machine::Native;
use millrace_tls::{
    CertificateExpiry, CertificateLifetime, CertificateRole, RefreshOutcome, ServerConfig,
};

use super::config::ListenConfig;

const PERIOD: Duration = Duration::from_secs(1);

/// Handle of the thread that checks certificate files. Dropping the handle tells the thread to end.
pub(crate) struct CertificateWatcher {
    _stop: Sender<()>,
}

struct WatchedCertificates {
    config: Arc<ServerConfig>,
    address: String,
    said: Vec<(String, CertificateExpiry)>,
}

impl CertificateWatcher {
    /// Starts the thread. Returns `None` if no listener has TLS.
    pub(crate) fn start(listeners: &[ListenConfig]) -> Result<Option<CertificateWatcher>, Error> {
        let watched = watched(listeners);
        if watched.is_empty() {
            return Ok(None);
        }
        let (stop, stopped) = channel();
        let body = move || run(watched, &stopped);
        let _detached = Native::try_spawn("millrace-tls", None, body)
            .map_err(|error| Error::new(ErrorKind::System, error.to_string()))?;
        Ok(Some(CertificateWatcher { _stop: stop }))
    }
}

/// Logs which certificates of these listeners have expired or expire soon. A server also calls this
/// at its start.
pub fn log_expiries(listeners: &[ListenConfig]) {
    let now = SystemTime::now();
    watched(listeners).iter_mut().for_each(|one| one.look_at_dates(now));
}

fn run(mut watched: Vec<WatchedCertificates>, stopped: &Receiver<()>) {
    loop {
        let now = SystemTime::now();
        watched.iter_mut().for_each(|one| one.look_at_dates(now));
        if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        watched.iter().for_each(WatchedCertificates::look);
    }
}

fn watched(listeners: &[ListenConfig]) -> Vec<WatchedCertificates> {
    let mut watched = Vec::<WatchedCertificates>::new();
    for listener in listeners {
        let Some(tls) = &listener.tls else { continue };
        let address = listener.listen.to_string();
        match watched.iter_mut().find(|one| Arc::ptr_eq(&one.config, &tls.config)) {
            Some(one) => one.address += &format!(", {address}"),
            None => {
                let config = Arc::clone(&tls.config);
                watched.push(WatchedCertificates { config, address, said: Vec::new() });
            }
        }
    }
    watched
}

impl WatchedCertificates {
    /// Logs which certificates have expired or expire soon, at most once a day for each.
    fn look_at_dates(&mut self, now: SystemTime) {
        let mut said = Vec::new();
        for CertificateLifetime { name, role, lifetime } in self.config.lifetimes() {
            let one = (name, lifetime.expiry(now));
            if !self.said.contains(&one) {
                self.say(&one.0, role, &one.1);
            }
            said.push(one);
        }
        self.said = said;
    }

    fn say(&self, name: &str, role: CertificateRole, expiry: &CertificateExpiry) {
        let address = &self.address;
        let refused = match role {
            CertificateRole::Own => "clients refuse the server",
            CertificateRole::ClientCa => "clients with certificates of this CA are refused",
        };
        match expiry {
            CertificateExpiry::Far => {}
            CertificateExpiry::Soon { .. } => tracing::warn!(
                address,
                "{address}: {name} {expiry}; replace the file; the new certificate is loaded \
                 without a restart"
            ),
            CertificateExpiry::Over { .. } => tracing::error!(
                address,
                "{address}: {name} {expiry}; {refused}; replace the file, and the new \
                 certificate is loaded without a restart"
            ),
        }
    }

    fn look(&self) {
        let address = &self.address;
        match self.config.refresh() {
            Ok(RefreshOutcome::Same) => {}
            Ok(RefreshOutcome::Reloaded) => {
                tracing::info!(address, "{address}: new certificates are in use");
            }
            Err(error) => {
                tracing::warn!(
                    address,
                    "{address}: {error}; the previous certificates stay in use"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_authority::{Authority, Validity};
    use millrace_nbd::TlsMode;
    use millrace_tls::{Identity, ServerFiles};

    use super::*;
    use crate::nbd::connection::client_log::tests::logged;
    use crate::nbd::{Listen, ListenTls};

    #[test]
    fn changed_files_are_logged_once_for_all_listeners() {
        let authority = Authority::new("CA");
        let issued = authority.issue("server", &["localhost"], Validity::Now);
        let next = authority.issue("next", &["localhost"], Validity::Now);
        let identity =
            Identity { certificate: issued.certificate.clone(), key: issued.key.clone() };
        let config = ServerConfig::load(ServerFiles { identity, client_ca: None }).unwrap();
        let config = Arc::new(config);
        let listener = |name: &str| {
            let mut one = ListenConfig::new(Listen::Abstract(name.to_owned()), vec![0]);
            one.tls = Some(ListenTls { config: Arc::clone(&config), mode: TlsMode::Required });
            one
        };
        let without = ListenConfig::new(Listen::Abstract("c".to_owned()), vec![0]);
        assert!(CertificateWatcher::start(std::slice::from_ref(&without)).unwrap().is_none());
        let watched = watched(&[listener("a"), without, listener("b")]);
        assert_eq!(watched.len(), 1);
        let look = || logged(|| watched[0].look());
        assert_eq!(look(), "");
        std::fs::copy(&next.certificate, &issued.certificate).unwrap();
        let said = look();
        assert!(said.starts_with("unix:@a, unix:@b: "), "{said}");
        assert!(said.ends_with("; the previous certificates stay in use\n"), "{said}");
        assert_eq!(look(), "", "said once");
        std::fs::copy(&next.key, &issued.key).unwrap();
        assert_eq!(look(), "unix:@a, unix:@b: new certificates are in use\n");
    }

    #[test]
    fn certificate_that_expires_is_said_before_and_then_once_day() {
        let authority = Authority::new("CA");
        let day = Duration::from_secs(24 * 60 * 60);
        // Less than a third of the certificate's lifetime of two days is left.
        let issued = authority.issue("server", &["localhost"], Validity::Seconds(40_000));
        let identity = Identity { certificate: issued.certificate, key: issued.key };
        let config = ServerConfig::load(ServerFiles { identity, client_ca: None }).unwrap();
        let (config, address) = (Arc::new(config), "tcp:1".to_owned());
        let mut watched = WatchedCertificates { config, address, said: Vec::new() };
        let now = SystemTime::now();
        let mut look = |now| logged(|| watched.look_at_dates(now));
        let soon = look(now);
        assert!(soon.starts_with("tcp:1: the certificate in /"), "{soon}");
        assert!(soon.contains("server-cert.pem expires within a day, at "), "{soon}");
        assert_eq!(look(now), "", "said once");
        let over = look(now + day);
        assert!(over.contains("server-cert.pem expired at "), "{over}");
        assert!(over.contains("clients refuse the server; replace the file"), "{over}");
        assert_eq!(look(now + day), "");
        assert!(look(now + 2 * day).contains("expired at "), "once a day");
    }

    #[test]
    fn expiring_ca_of_clients_is_reported_like_a_certificate() {
        let authority = Authority::valid("CA", Validity::Seconds(40_000));
        let issued = authority.issue("server", &["localhost"], Validity::Seconds(400_000));
        let identity = Identity { certificate: issued.certificate, key: issued.key };
        let files = ServerFiles { identity, client_ca: Some(authority.ca()) };
        let config = Arc::new(ServerConfig::load(files).unwrap());
        let mut listener = ListenConfig::new(Listen::Abstract("a".to_owned()), vec![0]);
        listener.tls = Some(ListenTls { config, mode: TlsMode::Required });
        let said = logged(|| log_expiries(&[listener.clone()]));
        assert!(said.starts_with("unix:@a: the CA \"CA\" in /"), "{said}");
        assert!(said.contains("ca-cert.pem expires within a day, at "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let mut watched = watched(&[listener]);
        let mut look = |now| logged(|| watched[0].look_at_dates(now));
        let now = SystemTime::now();
        assert_eq!(look(now), said);
        assert_eq!(look(now), "", "said once");
        let over = look(now + Duration::from_secs(24 * 60 * 60));
        assert!(over.contains("ca-cert.pem expired at "), "{over}");
        assert!(
            over.contains("; clients with certificates of this CA are refused; replace"),
            "{over}"
        );
    }

    #[test]
    fn the_thread_ends_with_the_server() {
        let (stop, stopped) = channel();
        drop(stop);
        run(Vec::new(), &stopped);
    }
}
