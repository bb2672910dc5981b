//! Settings of NBD addresses: the users that may connect, and TLS.
//!
//! This module also has the rules that concern several addresses, and loads certificates.

use std::sync::Arc;

use millrace_exports::SocketAccess;
use millrace_exports::nbd::{Listen, ListenConfig, ListenTls};
use millrace_nbd::TlsMode;
use millrace_tls::ServerFiles;

use super::config::{ExportConfig, ServeConfig};
use crate::config::{ConfigPart, StartError};

/// TLS settings of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// Files of the certificate, the key, and the CA of clients' certificates.
    pub files: ServerFiles,
    /// If true, clients without TLS are refused. They only receive an error saying that TLS is
    /// required.
    pub required: bool,
}

/// Selects the TLS settings of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ListenerTls {
    /// The address uses the server's TLS settings (`ServerConfig::tls`), or no TLS if the server
    /// has none.
    #[default]
    OfServer,
    /// The address has no TLS.
    Off,
    /// The address has TLS settings of its own.
    Own(TlsConfig),
}

/// Settings of one NBD address. Exports are served at the address if their `nbd` lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Address to which the settings apply.
    pub listen: Listen,
    /// Mode, owner and allowed users of a Unix socket.
    pub access: SocketAccess,
    /// Choice of the TLS settings for the address: its own, the server's, or none.
    pub tls: ListenerTls,
}

impl ListenerConfig {
    /// Makes default settings for an address.
    #[must_use]
    pub fn new(listen: Listen) -> ListenerConfig {
        ListenerConfig { listen, access: SocketAccess::default(), tls: ListenerTls::OfServer }
    }
}

impl ServeConfig {
    fn settings_of(&self, listen: &Listen) -> Option<&ListenerConfig> {
        self.listener_settings.iter().find(|one| one.listen == *listen)
    }

    /// Returns the TLS settings that apply to an address.
    #[must_use]
    pub fn tls_of(&self, listen: &Listen) -> Option<&TlsConfig> {
        match self.settings_of(listen).map(|one| &one.tls) {
            Some(ListenerTls::Off) => None,
            Some(ListenerTls::Own(tls)) => Some(tls),
            Some(ListenerTls::OfServer) | None => self.server.tls.as_ref(),
        }
    }

    /// Returns the access rules of an address.
    #[must_use]
    pub fn access_of(&self, listen: &Listen) -> SocketAccess {
        self.settings_of(listen).map(|one| one.access.clone()).unwrap_or_default()
    }

    /// Returns the addresses of [`ServeConfig::listeners`] with their TLS settings loaded. Reads
    /// the certificate files; addresses with the same files share the result.
    ///
    /// # Errors
    /// Fails if a file cannot be used, with [`ConfigPart::ListenerTls`] as the part.
    pub fn load_listeners(&self) -> Result<Vec<ListenConfig>, StartError> {
        let mut loaded: Vec<(&ServerFiles, Arc<millrace_tls::ServerConfig>)> = Vec::new();
        let mut listeners = self.listeners();
        for (number, listener) in listeners.iter_mut().enumerate() {
            let Some(tls) = self.tls_of(&listener.listen) else { continue };
            let known = loaded.iter().find(|(files, _)| **files == tls.files);
            let config = match known {
                Some((_, config)) => Arc::clone(config),
                None => {
                    let config = millrace_tls::ServerConfig::load(tls.files.clone());
                    let config = Arc::new(config.map_err(|error| {
                        let text = format!("{}: tls: {error}", listener.listen);
                        StartError::invalid(ConfigPart::ListenerTls(number), text)
                    })?);
                    loaded.push((&tls.files, Arc::clone(&config)));
                    config
                }
            };
            let mode = if tls.required { TlsMode::Required } else { TlsMode::Offered };
            listener.tls = Some(ListenTls { config, mode });
        }
        Ok(listeners)
    }

    pub(super) fn check_listeners(&self) -> Result<(), StartError> {
        for (number, listener) in self.listeners().iter().enumerate() {
            let listen = &listener.listen;
            let wrong = |text: &str| {
                StartError::invalid(ConfigPart::Listener(number), format!("{listen}: {text}"))
            };
            let access = &listener.access;
            if access.is_of_a_file() && !matches!(listen, Listen::Unix(_)) {
                let text = "mode, owner and group apply to the file of a Unix socket; this address has none";
                return Err(wrong(text));
            }
            if access.allow.is_some() && matches!(listen, Listen::Tcp(_)) {
                let text = "users and groups of clients are not known over TCP; use tls with a \
                            client-ca";
                return Err(wrong(text));
            }
            if matches!(listen, Listen::Abstract(_)) && !self.knows_clients(listen) {
                let text = "an abstract socket is open to everybody on this host; say who may \
                            connect";
                return Err(wrong(text));
            }
        }
        Ok(())
    }

    fn knows_clients(&self, listen: &Listen) -> bool {
        let tls = self.tls_of(listen);
        let by_certificate = tls.is_some_and(|tls| tls.required && tls.files.client_ca.is_some());
        by_certificate || self.access_of(listen).allow.is_some()
    }

    pub(super) fn check_tls_allow(&self, export: &ExportConfig) -> Result<(), String> {
        let Some(names) = &export.tls_allow else { return Ok(()) };
        if names.is_empty() {
            let text = "tls-allow: the list is empty, so no client may use the export; add a name";
            return Err(text.to_owned());
        }
        let has_names =
            |listen: &&Listen| self.tls_of(listen).is_none_or(|tls| tls.files.client_ca.is_none());
        match export.nbd.iter().find(has_names) {
            None => Ok(()),
            Some(listen) => Err(format!(
                "tls-allow: clients of {listen} have no certificates, so none of them could use \
                 it; give its tls a client-ca"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use millrace_exports::AllowedPeers;
    use millrace_tls::Identity;

    use super::*;

    fn tls(client_ca: Option<PathBuf>) -> TlsConfig {
        let identity = Identity { certificate: "/c".into(), key: "/k".into() };
        TlsConfig { files: ServerFiles { identity, client_ca }, required: true }
    }

    fn config(listen: &Listen) -> ServeConfig {
        let export = ExportConfig {
            name: "a".to_owned(),
            nbd: vec![listen.clone()],
            ..ExportConfig::default()
        };
        ServeConfig { exports: vec![export], ..ServeConfig::default() }
    }

    #[test]
    fn address_has_tls_of_server_unless_it_says_otherwise() {
        let listen = Listen::Unix("/s".into());
        let mut config = config(&listen);
        assert_eq!(config.tls_of(&listen), None);
        config.server.tls = Some(tls(None));
        assert_eq!(config.tls_of(&listen), Some(&tls(None)));
        let mut settings = ListenerConfig::new(listen.clone());
        settings.tls = ListenerTls::Own(tls(Some("/ca".into())));
        config.listener_settings = vec![settings.clone()];
        assert_eq!(config.tls_of(&listen), Some(&tls(Some("/ca".into()))));
        settings.tls = ListenerTls::Off;
        config.listener_settings = vec![settings];
        assert_eq!(config.tls_of(&listen), None);
    }

    #[test]
    fn names_are_asked_for_only_where_clients_have_some() {
        let listen = Listen::Unix("/s".into());
        let mut config = config(&listen);
        config.exports[0].tls_allow = Some(vec!["host".to_owned()]);
        let said = |config: &ServeConfig| config.check_tls_allow(&config.exports[0]).unwrap_err();
        assert!(said(&config).contains("clients of unix:/s have no certificates"));
        config.server.tls = Some(tls(None));
        assert!(said(&config).contains("client-ca"));
        config.server.tls = Some(tls(Some("/ca".into())));
        assert_eq!(config.check_tls_allow(&config.exports[0]), Ok(()));
        config.exports[0].tls_allow = Some(Vec::new());
        assert!(said(&config).contains("the list is empty"));
    }

    #[test]
    fn an_abstract_socket_needs_to_know_its_clients() {
        let listen = Listen::Abstract("m".to_owned());
        let mut config = config(&listen);
        let said = config.check_listeners().unwrap_err().to_string();
        assert!(said.starts_with("unix:@m: an abstract socket is open to everybody"), "{said}");
        let mut settings = ListenerConfig::new(listen);
        settings.access.allow = Some(AllowedPeers { users: vec![0], groups: Vec::new() });
        config.listener_settings = vec![settings.clone()];
        assert!(config.check_listeners().is_ok());
        settings.access.mode = Some(0o600);
        config.listener_settings = vec![settings];
        let said = config.check_listeners().unwrap_err().to_string();
        assert!(
            said.contains("mode, owner and group apply to the file of a Unix socket"),
            "{said}"
        );
    }
}
