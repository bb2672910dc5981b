//! Paths and addresses of the control socket and of the metrics page. A start binds both just
//! before it binds the sockets of clients.
//!
//! The module owns the rule for the default path of the control socket. If an address is in use,
//! the module reports the line of the configuration that names the address. `serve` calls the
//! module.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use millrace::{AllowedPeers, Listen, SocketAccess, VhostSocket};
use millrace_console::visible;
use millrace_exports::nbd::{UnixSocket, handed_over_names};
use rustix::process::geteuid;

use super::probe;
use crate::config::words::{ControlWord, control_beside};
use crate::config::{ConfigProblems, Position, ServePlan};
use crate::views::Sockets;
use crate::views::metrics_listener::{BoundAddress, MetricsListener};

pub struct ControlSocket<'a> {
    pub path: Option<PathBuf>,
    pub line: usize,
    /// Client socket from which the control socket gets its path: `.control` is appended. `None` in
    /// these cases:
    /// - The configuration has the key `control`.
    /// - There is no client socket.
    /// - Another program creates the client socket. Nevertheless, `path` is derived from it.
    pub beside: Option<ClientSocket<'a>>,
}

#[derive(Debug, Clone, Copy)]
pub struct ClientSocket<'a> {
    pub key: &'static str,
    pub path: &'a Path,
    pub line: usize,
    /// False if the frontend of a virtual machine creates the socket.
    pub is_own: bool,
}

pub fn client_sockets(plan: &ServePlan) -> impl Iterator<Item = ClientSocket<'_>> {
    let nbd = plan.listeners.iter().filter_map(|listener| {
        let path = listener.unix_path()?;
        Some(ClientSocket { key: "nbd", path, line: listener.line, is_own: true })
    });
    nbd.chain(plan.guests().map(|(_, guests, line)| ClientSocket {
        key: "vhost-user-blk",
        path: guests.path(),
        line,
        is_own: matches!(guests.socket, VhostSocket::Listen(..)),
    }))
}

pub fn control(plan: &ServePlan) -> ControlSocket<'_> {
    if let Some(control) = &plan.daemon.control {
        let path = match control {
            ControlWord::At(path) => Some(path.clone()),
            ControlWord::Off => None,
        };
        return ControlSocket { path, line: plan.lines.server.at("control"), beside: None };
    }
    let Some(first) = client_sockets(plan).next() else {
        return ControlSocket { path: None, line: 1, beside: None };
    };
    let beside = Some(first).filter(|first| first.is_own);
    ControlSocket { path: control_beside(first.path), line: first.line, beside }
}

/// Returns the paths at which a running daemon may have its control socket. By default, the daemon
/// derives the path from the first client socket in the configuration. The order of the sockets may
/// have changed since the start, so the result has a path for each client socket.
pub fn control_places(plan: &ServePlan) -> Vec<PathBuf> {
    let own = control(plan).path.into_iter();
    if plan.daemon.control.is_some() {
        return own.collect();
    }
    own.chain(client_sockets(plan).filter_map(|one| control_beside(one.path))).collect()
}

/// Returns the clients that may change anything: root, the user of this process, and the members of
/// `control-admin-group`.
fn admins(plan: &ServePlan) -> AllowedPeers {
    let mut users = vec![0, geteuid().as_raw()];
    users.dedup();
    AllowedPeers { users, groups: plan.daemon.control_admin_group.into_iter().collect() }
}

/// Returns the access settings of the control socket's file. By default, members of
/// `control-admin-group` may open it.
fn control_file(plan: &ServePlan) -> SocketAccess {
    match (&plan.daemon.control_access, plan.daemon.control_admin_group) {
        (access, _) if access.is_of_a_file() => access.clone(),
        (_, Some(group)) => SocketAccess { group: Some(group), ..SocketAccess::default() },
        (_, None) => SocketAccess::with_mode(Some(0o600)),
    }
}

/// Returns the address of the metrics page, the flag or line that sets it, and the prefix of errors
/// about it. The flag --metrics overrides the configuration.
pub fn metrics(
    plan: &ServePlan,
    flag: Option<SocketAddr>,
) -> Option<(SocketAddr, Position, &'static str)> {
    match (flag, plan.daemon.metrics) {
        (Some(address), _) => Some((address, Position::Flag("--metrics"), "")),
        (None, Some(address)) => {
            Some((address, Position::Line(plan.lines.server.at("metrics")), "metrics: "))
        }
        (None, None) => None,
    }
}

/// Refuses sockets from systemd that no export listens on, because their clients would connect and
/// wait forever.
pub fn refuse_unused_sockets(plan: &ServePlan) -> Result<(), ConfigProblems> {
    let is_used = |name: &String| {
        let wanted = Listen::Inherited(name.clone());
        plan.listeners.iter().any(|listener| listener.address == wanted)
    };
    let mut unused = handed_over_names();
    unused.retain(|name| !is_used(name));
    if unused.is_empty() {
        return Ok(());
    }
    let names = unused.iter().map(|name| visible(name)).collect::<Vec<_>>().join(", ");
    let text = format!(
        "the service manager hands over sockets that no export listens on: {names}; clients would \
         wait there forever; add nbd = \"systemd:{}\" to an export, or remove the socket from its \
         unit",
        visible(&unused[0])
    );
    Err(plan.problem(Position::File, text))
}

pub fn bind(plan: &ServePlan, metrics_flag: Option<SocketAddr>) -> Result<Sockets, ConfigProblems> {
    let ControlSocket { path, line, beside } = control(plan);
    // By default, the path of the control socket is derived from the path of the client socket. If
    // the client socket cannot be created, the error names the client socket, because only that
    // path is in the configuration.
    if let Some(client) = beside
        && let Some(why) = probe::socket(client.path, Instant::now())
    {
        let text = format!("{}: unix:{}: {why}", client.key, client.path.display());
        return Err(plan.problem(line, text));
    }
    let file = control_file(plan);
    let control = path.map(|path| UnixSocket::bind_with(&path, &file)).transpose();
    let control = control.map_err(|error| plan.problem(line, format!("control: {error}")))?;
    let metrics = MetricsListener::new(bind_metrics(plan, metrics_flag)?);
    let metrics =
        metrics.map_err(|error| plan.problem(Position::File, format!("eventfd: {error}")))?;
    Ok(Sockets { control, admins: admins(plan), metrics: Arc::new(metrics) })
}

pub fn bind_metrics(
    plan: &ServePlan,
    metrics_flag: Option<SocketAddr>,
) -> Result<Option<BoundAddress>, ConfigProblems> {
    let Some((address, place, key)) = metrics(plan, metrics_flag) else { return Ok(None) };
    let refused = |error| plan.problem(place, format!("{key}{address}: {}", probe::no_tcp(&error)));
    BoundAddress::bind(address).map(Some).map_err(refused)
}

pub fn describe_metrics(address: SocketAddr) -> String {
    format!("metrics at http://{address}/metrics\ndashboard at http://{address}/\n")
}

pub fn describe(sockets: &Sockets) -> String {
    let mut text = String::new();
    match &sockets.control {
        Some(control) => {
            let path = control.path().to_string_lossy();
            let _ = writeln!(text, "control at unix:{}", visible(&path));
        }
        None => tracing::info!(
            "`millrace stat` needs a control socket, and there is none; set [server] control = \
             \"unix:PATH\""
        ),
    }
    let bound = sockets.metrics.socket().and_then(|socket| socket.local_addr().ok());
    text.extend(bound.map(describe_metrics));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn admins_are_root_the_daemon_user_and_the_socket_group() {
        let plan = |keys: &str| {
            let text = format!(
                "[[drive]]\nname = \"d\"\nspec = \"null:\"\n[[volume]]\nname = \"v\"\n\
                 drives = [\"d\"]\n[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n\
                 [server]\n{keys}"
            );
            config::load("m.toml", &text, Path::new("")).unwrap()
        };
        let file = |keys: &str| {
            let SocketAccess { mode, group, .. } = control_file(&plan(keys));
            (mode, group)
        };
        assert_eq!(file(""), (Some(0o600), None));
        assert_eq!(file("control-admin-group = 7\n"), (None, Some(7)));
        assert_eq!(file("control-group = 6\ncontrol-admin-group = 7\n"), (None, Some(6)));
        assert_eq!(file("control-mode = 0o666\n"), (Some(0o666), None));
        let own = geteuid().as_raw();
        let users = if own == 0 { vec![0] } else { vec![0, own] };
        let expected = AllowedPeers { users: users.clone(), groups: vec![7] };
        assert_eq!(admins(&plan("control-group = 6\ncontrol-admin-group = 7\n")), expected);
        assert_eq!(admins(&plan("")), AllowedPeers { users, groups: Vec::new() });
    }
}
