//! Finds the daemon that a verb connects to: by `--connect`, else by the variable
//! `MILLRACE_CONTROL`, else by a search.
//!
//! The first directory with a live control socket wins. Another user may have created a directory
//! below the working directory, with a server that only looks like a daemon, so a socket there is
//! trusted only if root or the user of this program listens, according to the kernel's peer
//! credentials.

use std::fs::DirEntry;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use millrace_console::visible;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use signal_hook::iterator::Signals;

use crate::config::words::{self, ControlWord};
use crate::views::client::{Client, why_not};

const VARIABLE: &str = "MILLRACE_CONTROL";
const RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";

/// Period for checking whether a signal has arrived or the requested time is over.
const TURN: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
pub struct Connect {
    /// Control socket of the daemon, unix:PATH [default: that in MILLRACE_CONTROL, else one in
    /// ./millrace-data, ., $XDG_RUNTIME_DIR/millrace or /run/millrace]
    #[arg(long, value_name = "unix:PATH", value_parser = socket, global = true)]
    connect: Option<PathBuf>,
}

impl Connect {
    pub fn client(&self) -> Result<Client> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        match (&self.connect, variable(VARIABLE)) {
            (Some(path), _) => Client::connect(path),
            (None, Some(text)) => {
                let path = socket(&text)
                    .map_err(|why| anyhow!("{VARIABLE}=\"{}\": {why}", visible(&text)))?;
                Client::connect(&path)
            }
            (None, None) => search(&places(variable(RUNTIME_DIR).as_deref())),
        }
    }
}

/// Sends a request to the daemon every `period`, until `length` has passed or a signal has arrived.
/// Without requests, the daemon would end the recording or statistics that this program has
/// started.
pub fn keep_asking(
    signals: &mut Signals,
    length: Option<Duration>,
    period: Duration,
    mut ask: impl FnMut(Duration) -> Result<()>,
) -> Result<()> {
    let (began, mut asked) = (Instant::now(), Instant::now());
    while signals.pending().next().is_none() {
        let left = length.map(|whole| whole.saturating_sub(began.elapsed()));
        if left == Some(Duration::ZERO) {
            break;
        }
        std::thread::sleep(left.map_or(TURN, |left| left.min(TURN)));
        if asked.elapsed() >= period {
            asked = Instant::now();
            ask(began.elapsed())?;
        }
    }
    Ok(())
}

fn socket(text: &str) -> Result<PathBuf, String> {
    let with_scheme = if text.contains(':') { text.to_owned() } else { format!("unix:{text}") };
    match words::control(&with_scheme, Path::new(""))? {
        ControlWord::At(path) => Ok(path),
        ControlWord::Off => Err("write unix:PATH".to_owned()),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct SocketFolder {
    folder: PathBuf,
    /// True if any user of the host may have created the directory. Then the verb checks which user
    /// the daemon behind the socket runs as.
    is_anybodys: bool,
}

fn places(runtime_dir: Option<&str>) -> Vec<SocketFolder> {
    let own = runtime_dir.map(Path::new).filter(|folder| folder.is_absolute());
    let place = |folder: PathBuf| SocketFolder { is_anybodys: folder.is_relative(), folder };
    let fixed = ["millrace-data", "."].map(|folder| place(folder.into()));
    let of_user = own.map(|folder| place(folder.join("millrace")));
    fixed.into_iter().chain(of_user).chain([place("/run/millrace".into())]).collect()
}

fn search(places: &[SocketFolder]) -> Result<Client> {
    let mut passed = Vec::new();
    for place in places {
        let sockets = sockets_in(&place.folder);
        let mut served = Vec::new();
        match &sockets {
            Ok(sockets) if !sockets.is_empty() => {}
            Ok(_) => passed.push(format!("{}: no control socket", place.folder.display())),
            Err(why) => passed.push(format!("{}: {why}", place.folder.display())),
        }
        for path in sockets.unwrap_or_default() {
            let reached = UnixStream::connect(&path).map_err(|error| why_not(&path, &error));
            let trusted = reached.and_then(|socket| match place.is_anybodys {
                true => trusted(&socket, geteuid().as_raw()).map(|()| socket),
                false => Ok(socket),
            });
            match trusted {
                Ok(socket) => served.push((path, socket)),
                Err(why) => passed.push(format!("{}: {why}", path.display())),
            }
        }
        if served.len() > 1 {
            let list = served.iter().map(|(path, _)| format!("unix:{}", path.display()));
            let list = list.collect::<Vec<_>>().join(", ");
            bail!("several daemons are running; choose one with --connect: {list}");
        }
        if let Some((path, socket)) = served.pop() {
            for line in passed.iter().filter(|line| line.ends_with(UNTRUSTED)) {
                tracing::warn!("unix:{line}; using unix:{} instead", path.display());
            }
            return Client::greeted(socket, &path);
        }
    }
    Err(anyhow!(
        "no daemon found: start `millrace serve`, or name its control socket with --connect \
         unix:PATH or {VARIABLE}; places that were searched:\n  {}",
        passed.join("\n  ")
    ))
}

const UNTRUSTED: &str = "only daemons of root and of this user are trusted; use --connect to \
                         connect anyway";

/// Returns an error if the server was started by a user other than root and the user ID `own`.
fn trusted(socket: &UnixStream, own: u32) -> Result<(), String> {
    match socket_peercred(socket) {
        Ok(server) => is_trusted(server.uid.as_raw(), own),
        Err(error) => {
            Err(format!("the system does not report which user listens on this socket: {error}"))
        }
    }
}

fn is_trusted(server: u32, own: u32) -> Result<(), String> {
    match server == 0 || server == own {
        true => Ok(()),
        false => Err(format!("served by user {server}: {UNTRUSTED}")),
    }
}

fn sockets_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error: io::Error| match error.kind() {
        ErrorKind::NotFound => "no such directory".to_owned(),
        ErrorKind::PermissionDenied => "this user may not list it".to_owned(),
        _ => error.to_string(),
    })?;
    let is_control = |entry: &DirEntry| {
        let name = entry.file_name();
        let is_named = name == "control.sock" || name.as_encoded_bytes().ends_with(b".control");
        is_named && entry.file_type().is_ok_and(|kind| kind.is_socket())
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(is_control)
        .map(|entry| match folder == Path::new(".") {
            true => entry.file_name().into(),
            false => entry.path(),
        })
        .collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn daemon_is_searched_near_first_then_of_user_then_of_system() {
        let order = |runtime_dir| {
            let places = places(runtime_dir);
            let shown =
                |place: &SocketFolder| format!("{} {}", place.folder.display(), place.is_anybodys);
            places.iter().map(shown).collect::<Vec<_>>()
        };
        let (near, system) = (["millrace-data true", ". true"], "/run/millrace false");
        assert_eq!(order(None), [near[0], near[1], system]);
        let own = "/run/user/7/millrace false";
        assert_eq!(order(Some("/run/user/7")), [near[0], near[1], own, system]);
        assert_eq!(order(Some("not/absolute")), order(None));
    }

    #[test]
    fn a_server_near_is_trusted_if_it_is_of_root_or_of_this_user() {
        assert_eq!((is_trusted(0, 1000), is_trusted(1000, 1000)), (Ok(()), Ok(())));
        let why = "served by user 1001: only daemons of root and of this user are trusted; use \
                   --connect to connect anyway";
        assert_eq!(is_trusted(1001, 1000), Err(why.to_owned()));
        assert_eq!(is_trusted(1001, 0), Err(why.to_owned()));
        let dir = tempfile::tempdir().unwrap();
        let _server = UnixListener::bind(dir.path().join("s")).unwrap();
        let socket = UnixStream::connect(dir.path().join("s")).unwrap();
        assert_eq!(trusted(&socket, geteuid().as_raw()), Ok(()));
    }

    #[test]
    fn sockets_are_found_by_name_and_places_without_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let bind = |name: &str| UnixListener::bind(dir.path().join(name)).unwrap();
        let servers = ["b.sock.control", "control.sock", "b.sock"].map(bind);
        std::fs::write(dir.path().join("a.control"), "").unwrap();
        let found = sockets_in(dir.path()).unwrap();
        assert_eq!(found, ["b.sock.control", "control.sock"].map(|name| dir.path().join(name)));
        let place = |folder: PathBuf| SocketFolder { folder, is_anybodys: true };
        let said = search(&[place(dir.path().into())]).err().unwrap().to_string();
        assert!(said.starts_with("several daemons are running; choose one with --connect: unix:"));
        drop(servers);
        let missing = dir.path().join("none");
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        let said = search(&[dir.path().into(), missing.clone(), empty.clone()].map(place));
        let said = said.err().unwrap().to_string();
        let lines: Vec<&str> = said.lines().skip(1).map(str::trim).collect();
        let at = |path: &Path, why: &str| format!("{}: {why}", path.display());
        let dead = "no daemon serves this socket any more";
        assert_eq!(
            lines,
            [
                at(&found[0], dead),
                at(&found[1], dead),
                at(&missing, "no such directory"),
                at(&empty, "no control socket"),
            ]
        );
    }

    #[test]
    fn a_socket_is_named_with_and_without_its_scheme() {
        assert_eq!(socket("unix:/a"), Ok("/a".into()));
        assert_eq!(socket("a/b"), Ok("a/b".into()));
        assert!(socket("off").is_ok_and(|path| path == Path::new("off")));
        assert!(socket("tcp:7").is_err());
    }
}
