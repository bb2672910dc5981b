//! The sockets of the daemon's views: where they are, bound just before those of clients.
//!
//! Owns the rule for a control socket that the configuration does not name. An address that is
//! taken is a problem with the line that names it. Called by `serve`.

use std::fmt::Write;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use millrace_exports::server::UnixSocket;

use crate::config::words::{Address, ControlWord, control_beside};
use crate::config::{Checked, Place, Problems};
use crate::views::Sockets;
use crate::visible::visible;

/// Binds what the plan asks for; metrics where the flag says, if it was given.
///
/// # Errors
/// If an address is in use, or the system refuses it.
pub fn bind(plan: &Checked, metrics_flag: Option<SocketAddr>) -> Result<Sockets, Problems> {
    let problem = |place: Place, text: String| {
        let mut problems = Problems::new(&plan.file);
        problems.add_at(place, text);
        problems
    };
    let (path, line, key) = match &plan.server.control {
        Some(control) => match &control.value {
            ControlWord::At(path) => (Some(path.clone()), control.line, "control"),
            ControlWord::Off => (None, control.line, "control"),
        },
        None => {
            let sockets = plan.listeners.iter().filter_map(|listener| match &listener.address {
                Address::Unix(path) => Some((control_beside(path), listener.line, "nbd")),
                Address::Tcp(_) => None,
            });
            let machines = plan.exports.iter().filter_map(|export| export.vhost.as_ref());
            let machines =
                machines.map(|vhost| (control_beside(vhost.path()), vhost.line, "vhost-user-blk"));
            sockets.into_iter().chain(machines).next().unwrap_or((None, 1, "control"))
        }
    };
    if let (Some(path), false) = (&path, key == "control") {
        // What is wrong is where clients are served, not what was put beside it unasked.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.exists()) {
            let (folder, beside) = (folder.display(), path.display().to_string());
            let socket = beside.trim_end_matches(".control");
            let text = format!(
                "{key}: unix:{socket}: its folder {folder} is not there; make it, or choose \
                 another path"
            );
            return Err(problem(Place::Line(line), text));
        }
    }
    let control = path.map(|path| UnixSocket::bind_private(&path)).transpose();
    let control = control.map_err(|error| problem(Place::Line(line), format!("{key}: {error}")))?;
    let wanted = match (metrics_flag, &plan.server.metrics) {
        (Some(address), _) => Some((address, Place::Flag("--metrics"), "")),
        (None, Some(key)) => Some((key.value, Place::Line(key.line), "metrics: ")),
        (None, None) => None,
    };
    let metrics = wanted.map(|(address, place, key)| {
        TcpListener::bind(address).map_err(|error| {
            let why = match error.kind() {
                ErrorKind::AddrInUse => "in use by another server; choose another port".to_owned(),
                _ => format!("cannot listen: {error}"),
            };
            problem(place, format!("{key}{address}: {why}"))
        })
    });
    Ok(Sockets { control, metrics: metrics.transpose()? })
}

/// Where they are, for people; logs what is missing, or open to others.
pub fn describe(sockets: &Sockets) -> String {
    let mut text = String::new();
    match &sockets.control {
        Some(control) => {
            let path = control.path().to_string_lossy();
            let _ = writeln!(text, "control at unix:{}", visible(&path));
        }
        None => tracing::info!(
            "no control socket; [server] control = \"unix:PATH\" is for `millrace stat`"
        ),
    }
    if let Some(address) = sockets.metrics.as_ref().and_then(|socket| socket.local_addr().ok()) {
        let _ = writeln!(text, "metrics at http://{address}/metrics");
        let _ = writeln!(text, "dashboard at http://{address}/");
        if !address.ip().is_loopback() {
            tracing::warn!("metrics at {address}: everybody on the network may read them");
        }
    }
    text
}
