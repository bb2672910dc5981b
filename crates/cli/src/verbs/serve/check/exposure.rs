//! Warnings about access that a plan opens to other users of this host or to the network, and about
//! key files that other users can read.
//!
//! Every key and flag that can open access has a warning. Such access is allowed and may be
//! intended. A warning states where it is configured, who gets access, what they may do, and how to
//! prevent it.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use millrace::{DriveConfig, Listen, SocketAccess, Spec, TlsConfig, VhostSocket};
use millrace_exports::nbd::handed_over_address;

use super::view_sockets;
use crate::config::{KeyLines, ListenerPlan, Position, ServePlan};

const OTHERS: u32 = 0o007;
/// Mode bit that lets other users connect to a Unix socket.
const OTHERS_WRITE: u32 = 0o002;
const OTHERS_READ: u32 = 0o004;

type Warning = (Position, String);

pub fn warnings(plan: &ServePlan, metrics_flag: Option<SocketAddr>) -> Vec<String> {
    let mut list: Vec<Warning> = Vec::new();
    list.extend(plan.listeners.iter().filter_map(|listener| of_listener(plan, listener)));
    list.extend(of_guests(plan));
    list.extend(of_control(plan));
    list.extend(of_metrics(plan, metrics_flag));
    list.extend(of_keys(plan));
    list.into_iter().map(|(place, text)| plan.problem(place, text).to_string()).collect()
}

/// Warns about an NBD address that other users or hosts can reach. Only certificates and lists of
/// users restrict its clients.
fn of_listener(plan: &ServePlan, listener: &ListenerPlan) -> Option<Warning> {
    let (address, may) = (&listener.address, what_clients_may(plan, listener));
    let at = |line, text| Some((Position::Line(line), format!("nbd: {address}: {text}")));
    let asks_for_certificates = listener.tls.as_ref().filter(|tls| tls.files.client_ca.is_some());
    if let Some(tls) = asks_for_certificates {
        let text = format!(
            "clients without TLS may {may}: client-ca asks clients with TLS for a certificate, and \
             required = false lets all others in without; remove required = false"
        );
        return if tls.required { None } else { at(listener.tls_line, text) };
    }
    let handed_over = match address {
        // `handed_over_address` returns `None` during `--check`, because systemd passes no sockets
        // to a check.
        Listen::Inherited(name) => handed_over_address(name),
        _ => None,
    };
    match handed_over.unwrap_or(address) {
        Listen::Tcp(tcp) if !tcp.ip().to_canonical().is_loopback() => {
            at(listener.line, open_to_network(tcp, &may, listener.tls.as_ref()))
        }
        Listen::Unix(path) if handed_over.is_some() => {
            let mode = fs::metadata(path).ok()?.permissions().mode();
            let text = format!(
                "every user of this host may {may}, by the mode of {}; write SocketMode=0660 in \
                 its unit",
                path.display()
            );
            if mode & OTHERS_WRITE == 0 { None } else { at(listener.line, text) }
        }
        Listen::Unix(_) => {
            let by_mode = open_to_host("mode", &plan.config.access_of(address), &may)?;
            at(listener.access_line, by_mode)
        }
        Listen::Tcp(_) | Listen::Abstract(_) | Listen::Inherited(_) => None,
    }
}

fn open_to_network(tcp: &SocketAddr, may: &str, tls: Option<&TlsConfig>) -> String {
    let who = "everybody on the network who reaches this port may";
    if tls.is_some() {
        return format!(
            "{who} {may}, because tls does not require a client certificate; add client-ca"
        );
    }
    let loopback = if tcp.is_ipv6() { "[::1]" } else { "127.0.0.1" };
    format!(
        "{who} {may}, without a password; use tcp:{loopback}:{}, let a firewall choose who gets in, \
         or add tls with a client-ca",
        tcp.port()
    )
}

/// Returns a warning if the mode of a Unix socket, set by `key`, gives permissions to every user of
/// this host. If the configuration sets no mode, owner or group of the socket, the umask decides.
/// Returns no warning if only listed users are allowed, because other users are disconnected.
fn open_to_host(key: &str, access: &SocketAccess, may: &str) -> Option<String> {
    if access.allow.is_some() {
        return None;
    }
    let Some(mode) = access.mode else {
        let own = access.owner.or(access.group).is_some();
        let open = !own && umask().is_some_and(|umask| umask & OTHERS_WRITE == 0);
        return open.then(|| {
            format!(
                "every user of this host may {may}, since the umask takes write permission from \
                 nobody else; add {key} = 0o660, or start with umask 0022"
            )
        });
    };
    let closed = mode & !OTHERS;
    match mode & OTHERS {
        0 => None,
        others if others & OTHERS_WRITE == 0 => Some(format!(
            "{key} = 0o{mode:03o} gives permissions to every user of this host, of whom none may \
             connect without that to write; write {key} = 0o{closed:03o}"
        )),
        _ => Some(format!(
            "{key} = 0o{mode:03o} lets every user of this host {may}; write {key} = 0o{closed:03o}, \
             and give the socket the group of those who may"
        )),
    }
}

fn umask() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

fn what_clients_may(plan: &ServePlan, listener: &ListenerPlan) -> String {
    let names = |read_only: bool| {
        let exports = listener.exports.iter().map(|export| &plan.config.exports[*export]);
        let exports = exports.filter(|export| export.read_only == read_only);
        exports.map(|export| format!("\"{}\"", export.name)).collect::<Vec<_>>().join(", ")
    };
    match (names(false), names(true)) {
        (written, read) if read.is_empty() => format!("read and write {written}"),
        (written, read) if written.is_empty() => format!("read {read}"),
        (written, read) => format!("read and write {written}, and read {read}"),
    }
}

fn of_guests(plan: &ServePlan) -> impl Iterator<Item = Warning> {
    plan.guests().filter_map(|(export, guests, line)| {
        let VhostSocket::Listen(path, access) = &guests.socket else { return None };
        let what = if export.read_only { "read" } else { "read and write" };
        let text = open_to_host("socket-mode", access, &format!("{what} \"{}\"", export.name))?;
        let path = path.display();
        Some((Position::Line(line), format!("vhost-user-blk: unix:{path}: {text}")))
    })
}

fn of_control(plan: &ServePlan) -> Option<Warning> {
    let access = &plan.daemon.control_access;
    let path = view_sockets::control(plan).path.filter(|_| access.is_of_a_file())?;
    let may = "see and record what clients do";
    let text = open_to_host("control-mode", access, may)?;
    let line = plan.lines.server.first(&["control-mode", "control-owner", "control-group"])?;
    Some((Position::Line(line), format!("control: unix:{}: {text}", path.display())))
}

/// Returns a note about the key `control-group` in two cases:
///
/// - `control-admin-group` is not set: members of `control-group` may read, but not change
///   anything. In earlier versions, they could make changes.
/// - `control-admin-group` is a different group: its members cannot open the control socket unless
///   they are also in `control-group`.
pub fn control_note(plan: &ServePlan) -> Option<String> {
    let group = plan.daemon.control_access.group?;
    let text = match plan.daemon.control_admin_group {
        None => {
            "control-group: its members may read counters and make recordings; changes (`ctl set`, \
             `resize`, `acknowledge`), which earlier builds let them make, are for root and the \
             daemon's user, and for the members of control-admin-group if that is set"
        }
        Some(admins) if admins != group => {
            "control-group: the socket's file is for this group; a member of control-admin-group \
             must be in this group, too, to open it"
        }
        Some(_) => return None,
    };
    Some(plan.problem(plan.lines.server.at("control-group"), text).to_string())
}

fn of_metrics(plan: &ServePlan, flag: Option<SocketAddr>) -> Option<Warning> {
    let (address, place, key) = view_sockets::metrics(plan, flag)?;
    let loopback = if address.is_ipv6() { "[::1]" } else { "127.0.0.1" };
    (!address.ip().is_loopback()).then(|| {
        let text = format!(
            "{key}{address}: everybody on the network who reaches this port may read the metrics; \
             use {loopback}:{}, or let a firewall choose who gets in",
            address.port()
        );
        (place, text)
    })
}

fn of_keys(plan: &ServePlan) -> impl Iterator<Item = Warning> {
    let of_listeners = plan.listeners.iter().filter_map(|listener| {
        let key = listener.tls.as_ref()?.files.identity.key.clone();
        Some(("tls", key, listener.tls_line))
    });
    let of_drives = plan.drives().flat_map(|(drive, lines)| keys_of_drive(drive, lines));
    let mut known = HashSet::new();
    of_listeners.chain(of_drives).filter_map(move |(key, path, line)| {
        let mode = fs::metadata(&path).ok()?.permissions().mode();
        if mode & OTHERS_READ == 0 || !known.insert(path.clone()) {
            return None;
        }
        let shown = path.display();
        let text =
            format!("{key}: every user of this host can read the key in {shown}; chmod o= {shown}");
        Some((Position::Line(line), text))
    })
}

fn keys_of_drive(drive: &DriveConfig, lines: &KeyLines) -> Vec<(&'static str, PathBuf, usize)> {
    let spec = drive.spec.innermost();
    let tls = spec.get("tls-key").map(|path| ("tls-key", path.into(), lines.at("tls-key")));
    let keyrings = if spec.driver == "rbd" { keyrings(&spec) } else { Vec::new() };
    let of_ceph = keyrings.into_iter().map(|path| ("keyring", path, lines.at("conf")));
    tls.into_iter().chain(of_ceph).collect()
}

/// Returns the keyrings of a Ceph drive's user: those named by the cluster's configuration, or the
/// default one.
fn keyrings(spec: &Spec) -> Vec<PathBuf> {
    let cluster = spec.get("cluster").unwrap_or("ceph");
    let id = spec.get("id").unwrap_or("admin");
    let id = id.strip_prefix("client.").unwrap_or(id);
    let usual_conf = format!("/etc/ceph/{cluster}.conf");
    let conf = Path::new(spec.get("conf").unwrap_or(&usual_conf));
    let text = fs::read_to_string(conf).unwrap_or_default();
    let mut applies = true;
    let mut named: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']').trim();
            let own = section.strip_prefix("client.") == Some(id);
            applies = own || matches!(section, "global" | "client");
        } else if let Some((_, files)) =
            line.split_once('=').filter(|(key, _)| applies && key.trim() == "keyring")
        {
            named.extend(files.split(',').map(str::trim).filter(|file| !file.is_empty()));
        }
    }
    if named.is_empty() {
        named.push("/etc/ceph/$cluster.$name.keyring");
    }
    let words = [("$cluster", cluster), ("$type", "client"), ("$id", id)];
    let path = |file: &&str| {
        let file = file.replace("$name", "client.$id");
        PathBuf::from(words.iter().fold(file, |file, (word, value)| file.replace(word, value)))
    };
    named.iter().map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const DRIVE: &str = "[[drive]]\nname = \"d\"\nspec = \"null:\"\n\
                         [[volume]]\nname = \"v\"\ndrives = [\"d\"]\n";

    fn warned_of(text: &str, base: &Path) -> Vec<String> {
        let plan = config::load("m.toml", text, base);
        warnings(&plan.unwrap_or_else(|problems| panic!("{problems}\n{text}")), None)
    }

    fn warned(nbd: &str, more: &str) -> Vec<String> {
        let text = format!("{DRIVE}[[export]]\nvolume = \"v\"\nnbd = {nbd}\n{more}");
        warned_of(&text, Path::new("/no-such-folder"))
    }

    #[test]
    fn port_that_other_hosts_reach_is_warning_of_what_they_may_do() {
        let local = "[\"unix:s\", \"tcp:7\", \"tcp:[::1]:7\", \"tcp:127.0.0.2:7\", \
                     \"tcp:[::ffff:127.0.0.1]:7\"]";
        assert_eq!(warned(local, ""), [""; 0]);
        let said = "m.toml:9: nbd: tcp:0.0.0.0:7: everybody on the network who reaches this port \
                    may read and write \"v\", without a password; use tcp:127.0.0.1:7, let a \
                    firewall choose who gets in, or add tls with a client-ca";
        assert_eq!(warned("\"tcp:0.0.0.0:7\"", ""), [said]);
        let said = warned("\"tcp:[::]:7\"", "read-only = true\n");
        assert!(
            said[0].contains("may read \"v\", without a password; use tcp:[::1]:7,"),
            "{said:?}"
        );
        let both = "[[export]]\nvolume = \"v\"\nname = \"ro\"\nnbd = \"tcp:10.0.0.1:7\"\n\
                    read-only = true\n";
        let said = warned("\"tcp:10.0.0.1:7\"", both);
        assert!(said[0].contains("may read and write \"v\", and read \"ro\", without"), "{said:?}");
    }

    #[test]
    fn certificates_keep_others_out_only_where_all_clients_need_one() {
        let tls =
            |keys: &str| format!("[server]\ntls = {{ certificate = \"c\", key = \"k\"{keys} }}\n");
        let (ca, all) = (", client-ca = \"a\"", "[\"tcp:0.0.0.0:7\", \"tcp:7\", \"unix:s\"]");
        assert_eq!(warned(all, &tls(ca)), [""; 0]);
        let said = warned(all, &tls(&format!("{ca}, required = false")));
        for (said, address) in
            said.iter().zip(["tcp:0.0.0.0:7", "tcp:127.0.0.1:7", "unix:/no-such"])
        {
            assert!(said.starts_with(&format!("m.toml:11: nbd: {address}")), "{said}");
            assert!(said.contains("clients without TLS may read and write \"v\": "), "{said}");
        }
        assert_eq!(said.len(), 3, "{said:?}");
        let said = warned(all, &tls(", required = false"));
        assert!(
            said.len() == 1 && said[0].ends_with("client certificate; add client-ca"),
            "{said:?}"
        );
    }

    #[test]
    fn mode_that_lets_every_user_in_is_warning_wherever_it_stands() {
        let listener = |keys: &str| {
            warned("\"unix:s\"", &format!("[[listener]]\naddress = \"unix:s\"\n{keys}\n"))
        };
        let said = "m.toml:12: nbd: unix:/no-such-folder/s: mode = 0o666 lets every user of this \
                    host read and write \"v\"; write mode = 0o660, and give the socket the group of \
                    those who may";
        assert_eq!(listener("mode = 0o666"), [said]);
        let said = listener("mode = \"0645\"");
        assert!(
            said[0].contains("0o645 gives permissions to every user of this host, of"),
            "{said:?}"
        );
        assert_eq!(listener("mode = 0o660"), [""; 0]);
        assert_eq!(listener("mode = 0o666\nallow-users = [0]"), [""; 0]);
        let said = warned("\"unix:s\"", "vhost-user-blk = \"unix:m\"\nsocket-mode = 0o662\n");
        let begin = "m.toml:10: vhost-user-blk: unix:/no-such-folder/m: socket-mode = 0o662 lets";
        assert!(said.len() == 1 && said[0].starts_with(begin), "{said:?}");
        let said = warned("\"unix:s\"", "[server]\ncontrol-mode = 0o606\n");
        let begin = "m.toml:11: control: unix:/no-such-folder/s.control: control-mode = 0o606 lets \
                     every user of this host see and record what clients do";
        assert!(said.len() == 1 && said[0].starts_with(begin), "{said:?}");
        assert_eq!(
            warned("\"unix:s\"", "[server]\ncontrol = \"off\"\ncontrol-mode = 0o606\n"),
            [""; 0]
        );
    }

    #[test]
    fn a_control_group_is_noted_unless_its_members_are_the_admins() {
        let note = |keys: &str| {
            let export = "[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";
            let text = format!("{DRIVE}{export}[server]\n{keys}");
            control_note(&config::load("m.toml", &text, Path::new("")).unwrap())
        };
        assert_eq!(note(""), None);
        assert_eq!(note("control-admin-group = 7\n"), None);
        assert_eq!(note("control-group = 7\ncontrol-admin-group = 7\n"), None);
        let said = note("control-group = 7\n").unwrap();
        let begin = "m.toml:11: control-group: its members may read counters and make recordings; ";
        assert!(
            said.starts_with(begin) && said.contains("are for root and the daemon's"),
            "{said}"
        );
        let said = note("control-group = 7\ncontrol-admin-group = 8\n").unwrap();
        assert!(said.ends_with("must be in this group, too, to open it"), "{said}");
    }

    #[test]
    fn metrics_for_the_network_are_a_warning_at_the_key_or_the_flag() {
        let said = warned("\"unix:s\"", "[server]\nmetrics = \"0.0.0.0:9100\"\n");
        let text = "0.0.0.0:9100: everybody on the network who reaches this port may read the \
                    metrics; use 127.0.0.1:9100, or let a firewall choose who gets in";
        assert_eq!(said, [format!("m.toml:11: metrics: {text}")]);
        let plan = format!("{DRIVE}[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n");
        let plan = config::load("m.toml", &plan, Path::new("/no-such-folder")).unwrap();
        let flag = |address: &str| warnings(&plan, Some(address.parse().unwrap()));
        assert_eq!(flag("0.0.0.0:9100"), [format!("--metrics {text}")]);
        assert_eq!(flag("127.0.0.1:9100"), [""; 0]);
    }

    #[test]
    fn keys_that_every_user_can_read_are_named_once() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str, mode| {
            fs::write(dir.path().join(name), text).unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        write(
            "c.conf",
            "[global]\nkeyring = k1\n[client.me]\nkeyring = DIR/$cluster.$name\n",
            0o644,
        );
        let conf = fs::read_to_string(dir.path().join("c.conf")).unwrap();
        fs::write(
            dir.path().join("c.conf"),
            conf.replace("DIR", &dir.path().display().to_string()),
        )
        .unwrap();
        let text = "[[drive]]\nname = \"a\"\nspec = \"nbd:uri=nbds://h/x,tls-ca=ca,\
                    tls-certificate=c,tls-key=client\"\n\
                    [[drive]]\nname = \"b\"\ndriver = \"rbd\"\nimage = \"p/i\"\nid = \"me\"\n\
                    conf = \"c.conf\"\n\
                    [[volume]]\nname = \"v\"\ndrives = [\"a\", \"b\"]\n\
                    [[export]]\nvolume = \"v\"\nnbd = [\"tcp:7\", \"unix:s\"]\n\
                    [server]\ntls = { certificate = \"c\", key = \"server\" }\n";
        for mode in [0o600, 0o640, 0o644] {
            write("server", "", mode);
            write("client", "", mode);
            write("ceph.client.me", "", mode);
            let said = warned_of(text, dir.path());
            if mode != 0o644 {
                assert_eq!(said, [""; 0], "{mode:o}");
                continue;
            }
            let at = |name: &str| dir.path().join(name).display().to_string();
            let expected =
                [(17, "tls", "server"), (3, "tls-key", "client"), (9, "keyring", "ceph.client.me")];
            let expected = expected.map(|(line, key, name)| {
                let file = at(name);
                format!(
                    "m.toml:{line}: {key}: every user of this host can read the key in {file}; \
                     chmod o= {file}"
                )
            });
            assert_eq!(said, expected);
        }
    }
}
