//! Client of the control socket, for the verbs that query a running daemon.
//!
//! `Client` owns one blocking connection with a timeout. It checks the daemon's greeting, then
//! sends one request after another. Errors name the path that was tried and the remedy.

use std::error::Error;
use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use millrace_console::visible;
use nix::unistd::{Group, User};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::history::History;
use super::requests::HISTORY;
use super::{CONTROL_VERSION, HistoryRange, Verb};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the reply to a reload, which may have to write a removed cache to its drives first.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(3600);
/// Timeout of the greeting. A daemon sends it at once, but a server of another protocol may wait
/// for a request.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

const CONNECT: &str = "name the daemon's control socket, which it prints when it starts as \
                       \"control at ...\": --connect unix:PATH";

#[derive(Debug)]
pub struct DaemonRefusal {
    pub kind: String,
    pub message: String,
    text: String,
}

impl fmt::Display for DaemonRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for DaemonRefusal {}

pub struct Client {
    socket: BufReader<UnixStream>,
    path: PathBuf,
    asked: u64,
    version: String,
    pid: u64,
    verbs: Vec<String>,
}

impl Client {
    pub fn connect(path: &Path) -> anyhow::Result<Client> {
        let socket = UnixStream::connect(path).map_err(|error| {
            let (path, why) = (path.display(), why_not(path, &error));
            anyhow::anyhow!("unix:{path}: {why}; start `millrace serve`, or {CONNECT}")
        })?;
        Client::greeted(socket, path)
    }

    /// Reads the greeting on a connected socket. Error texts name `path`.
    pub fn greeted(socket: UnixStream, path: &Path) -> anyhow::Result<Client> {
        socket.set_read_timeout(Some(GREETING_TIMEOUT))?;
        socket.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let socket = BufReader::new(socket);
        let (path_owned, version, verbs) = (path.to_owned(), String::new(), Vec::new());
        let mut client = Client { socket, path: path_owned, asked: 0, version, pid: 0, verbs };
        client.expect_greeting()?;
        let greeting = client.line()?;
        if let Some(message) = greeting["error"]["message"].as_str() {
            bail!("unix:{}: the daemon refuses: {}", path.display(), visible(message));
        }
        client.version = visible(greeting["millrace"].as_str().unwrap_or("?")).into_owned();
        client.pid = greeting["pid"].as_u64().unwrap_or(0);
        client.verbs = serde_json::from_value(greeting["verbs"].clone()).unwrap_or_default();
        match greeting["control"].as_u64() {
            Some(version) if version == u64::from(CONTROL_VERSION) => Ok(client),
            Some(version) => bail!(
                "unix:{}: the daemon, millrace {}, speaks version {version} of the control \
                 protocol, this program {CONTROL_VERSION}; use the same version of millrace as the \
                 daemon",
                path.display(),
                client.version
            ),
            None => Err(other(path, "this is not a control socket of millrace")),
        }
    }

    /// Waits for the first byte of the greeting and checks it. Only one byte is awaited, because a
    /// server of another protocol might never send a newline.
    fn expect_greeting(&mut self) -> anyhow::Result<()> {
        // Stopping and continuing this process (SIGSTOP, SIGCONT) interrupts the wait, so it is
        // repeated.
        let begins = match retry(|| self.socket.fill_buf().map(drop)) {
            Ok(()) => self.socket.buffer(),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let silence = GREETING_TIMEOUT.as_secs();
                let why = format!(
                    "the server sent nothing for {silence} s, so this is not a control socket"
                );
                return Err(other(&self.path, &why));
            }
            Err(error) => return Err(self.gone(&error)),
        };
        match begins.first() {
            // An empty answer means that the daemon has closed the connection. Reading the greeting
            // line then reports that.
            None | Some(b'{') => Ok(()),
            _ if begins.starts_with(b"NBD") => {
                let why = "this is the NBD socket of an export, not a control socket";
                Err(other(&self.path, why))
            }
            _ => Err(other(&self.path, "this is not a control socket of millrace")),
        }
    }

    pub fn knows(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    pub fn daemon(&self) -> (&str, u64, &Path) {
        (&self.version, self.pid, &self.path)
    }

    /// Asks the daemon for its I/O history of the last `seconds`. Returns an empty history if the
    /// daemon is too old to know the verb.
    pub fn history(&mut self, seconds: usize) -> anyhow::Result<History> {
        match self.knows(HISTORY.name) {
            true => self.ask(&HISTORY, &HistoryRange { seconds: Some(seconds) }),
            false => Ok(History::default()),
        }
    }

    pub fn ask<Q, A>(&mut self, verb: &Verb<Q, A>, arguments: &Q) -> anyhow::Result<A>
    where
        Q: Serialize,
        A: DeserializeOwned,
    {
        let limit = if verb.takes_long { RELOAD_TIMEOUT } else { ANSWER_TIMEOUT };
        self.socket.get_ref().set_read_timeout(Some(limit))?;
        let answer = self.value(verb.name, &json!(arguments))?;
        serde_json::from_value(answer).with_context(|| self.broken())
    }

    fn value(&mut self, verb: &str, arguments: &Value) -> anyhow::Result<Value> {
        self.asked += 1;
        let mut request = json!({ "id": self.asked, "verb": verb });
        if let (Some(request), Some(more)) = (request.as_object_mut(), arguments.as_object()) {
            request.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        let mut line = request.to_string();
        line.push('\n');
        let sent = self.socket.get_mut().write_all(line.as_bytes());
        sent.map_err(|error| self.gone(&error))?;
        let mut reply = self.line()?;
        if let Some(message) = reply["error"]["message"].as_str() {
            let lines: Vec<_> = message.lines().map(visible).collect();
            let (path, shown) = (self.path.display(), lines.join("\n"));
            return Err(anyhow::Error::new(DaemonRefusal {
                kind: reply["error"]["kind"].as_str().unwrap_or_default().to_owned(),
                message: message.to_owned(),
                text: format!("unix:{path}: the daemon refuses {verb}: {shown}"),
            }));
        }
        match reply["id"].as_u64() == Some(self.asked) {
            true => Ok(reply["ok"].take()),
            false => bail!(self.broken()),
        }
    }

    fn line(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        let count = self.socket.read_line(&mut line).map_err(|error| self.gone(&error))?;
        if count == 0 {
            return Err(self.gone(&ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_str(&line).with_context(|| self.broken())
    }

    fn gone(&self, error: &io::Error) -> anyhow::Error {
        let path = self.path.display();
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => {
                anyhow::anyhow!("unix:{path}: the daemon has stopped")
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let limit = ANSWER_TIMEOUT.as_secs();
                anyhow::anyhow!("unix:{path}: the daemon has not answered for {limit} s")
            }
            _ => anyhow::anyhow!("unix:{path}: cannot communicate with the daemon: {error}"),
        }
    }

    fn broken(&self) -> String {
        format!("unix:{}: received a reply that is not from a millrace daemon", self.path.display())
    }
}

fn retry<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn other(path: &Path, why: &str) -> anyhow::Error {
    anyhow::anyhow!("unix:{}: {why}; {CONNECT}", path.display())
}

pub fn why_not(path: &Path, error: &io::Error) -> String {
    let meta = std::fs::metadata(path);
    if meta.as_ref().is_ok_and(|meta| !meta.file_type().is_socket()) {
        return "this is not a socket".to_owned();
    }
    match (error.kind(), meta) {
        (ErrorKind::NotFound, _) => "there is no socket".to_owned(),
        (ErrorKind::ConnectionRefused, _) => "no daemon serves this socket any more".to_owned(),
        (ErrorKind::PermissionDenied, Ok(meta)) => {
            let user = User::from_uid(meta.uid().into()).ok().flatten().map(|user| user.name);
            let group = Group::from_gid(meta.gid().into()).ok().flatten().map(|group| group.name);
            format!(
                "this user may not open the socket (owner {}, group {}, mode {:03o})",
                user.unwrap_or_else(|| meta.uid().to_string()),
                group.unwrap_or_else(|| meta.gid().to_string()),
                meta.mode() & 0o777
            )
        }
        (ErrorKind::PermissionDenied, Err(_)) => {
            "this user may not enter the socket's directory".to_owned()
        }
        _ => format!("cannot connect: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_of_another_protocol_is_refused_with_both_versions() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let greeting = json!({ "control": CONTROL_VERSION + 1, "millrace": "9.8", "verbs": [] });
        theirs.write_all(format!("{greeting}\n").as_bytes()).unwrap();
        let said = Client::greeted(ours, Path::new("c")).err().unwrap().to_string();
        let expected = "unix:c: the daemon, millrace 9.8, speaks version 2 of the control protocol, \
                        this program 1; use the same version of millrace as the daemon";
        assert_eq!(said, expected);
    }
}
