//! `bench --connect`: parses the address of a server and measures the server.
//!
//! An address is an NBD URI, or `vhost-user:` followed by the path of a socket. clap uses the
//! parser for the value of `--connect`. The verb `bench` calls the functions that measure, which
//! call the lab's NBD and vhost-user clients.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, bail};
use millrace_clients::vhost::Wait;
use millrace_experiments::{Plan, Row};
use millrace_nbd::client::NbdUri;

const VHOST_USER: &str = "vhost-user:";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    Nbd(NbdUri),
    VhostUser(PathBuf),
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Server, String> {
        if let Some(path) = text.strip_prefix(VHOST_USER) {
            // Two slashes may precede an absolute path, as in URIs without a host.
            let path = match path.strip_prefix("//") {
                Some(rest) if rest.starts_with('/') => rest,
                Some(_) => return Err(format!("{text:?}: write {VHOST_USER}/path or :path")),
                None => path,
            };
            return match path {
                "" => Err(format!("{text:?} names no socket; write {VHOST_USER}/path")),
                path => Ok(Server::VhostUser(PathBuf::from(path))),
            };
        }
        let scheme = text.split(':').next().unwrap_or(text);
        if !text.contains(':') || !matches!(scheme, "nbd" | "nbd+unix" | "nbds" | "nbds+unix") {
            return Err(format!(
                "unknown scheme in {text:?}; write nbd://host/name, \
                 nbd+unix:///name?socket=/path or {VHOST_USER}/path"
            ));
        }
        text.parse()
            .map(Server::Nbd)
            .map_err(|error: millrace_nbd::client::UriError| error.to_string())
    }
}

impl Server {
    /// Refuses `--wait` for servers whose clients cannot choose between polling and sleeping.
    pub fn check_wait(&self, wait: Option<Wait>) -> Result<()> {
        match (self, wait) {
            (Server::Nbd(_), Some(_)) => {
                bail!(
                    "--wait works only with --connect {VHOST_USER}SOCKET; NBD clients cannot poll, \
                     they sleep until a reply arrives"
                )
            }
            _ => Ok(()),
        }
    }

    /// Refuses to write to the server's disk unless the disk is empty.
    pub fn check_empty(&self, writer: &str) -> Result<()> {
        let checked = match self {
            Server::Nbd(uri) => millrace_experiments::check_nbd(uri, writer),
            Server::VhostUser(path) => millrace_experiments::check_vhost(path, writer),
        };
        Ok(checked?)
    }

    /// Measures one configuration, `plan`, on the server, and returns its row of the result table.
    pub fn run(
        &self,
        wait: Option<Wait>,
        plan: &Plan,
        progress: &mut dyn FnMut(f64, u64),
    ) -> Result<Row> {
        let row = match self {
            Server::Nbd(uri) => millrace_experiments::run_nbd_row(uri, plan, progress),
            Server::VhostUser(path) => millrace_experiments::run_vhost_row(
                path,
                wait.unwrap_or(Wait::Poll),
                plan,
                progress,
            ),
        };
        Ok(row?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_says_which_client_it_is() {
        let path = |text: &str| Ok(Server::VhostUser(PathBuf::from(text)));
        assert_eq!("vhost-user:/run/a.sock".parse::<Server>(), path("/run/a.sock"));
        assert_eq!("vhost-user:a.sock".parse::<Server>(), path("a.sock"));
        assert_eq!("vhost-user:///run/a.sock".parse::<Server>(), path("/run/a.sock"));
        assert!(matches!("nbd://host/name".parse(), Ok(Server::Nbd(_))));
        assert!(matches!("nbd+unix:///v?socket=/s".parse(), Ok(Server::Nbd(_))));
    }

    #[test]
    fn what_is_no_server_is_refused_with_what_would_be() {
        for text in ["vhost:/run/a.sock", "/run/a.sock", "http://host/", ""] {
            let error = text.parse::<Server>().unwrap_err();
            assert!(error.contains("vhost-user:/path") && error.contains("nbd://"), "{error}");
        }
        assert!("vhost-user:".parse::<Server>().unwrap_err().contains("names no socket"));
        assert!("vhost-user://host".parse::<Server>().unwrap_err().contains("vhost-user:/path"));
        assert!("nbds://host".parse::<Server>().unwrap_err().contains("TLS"));
        let nbd: Server = "nbd://host/name".parse().unwrap();
        assert!(nbd.check_wait(Some(Wait::Events)).unwrap_err().to_string().contains("--wait"));
        assert!(nbd.check_wait(None).is_ok());
    }
}
