//! Access to addresses of NBD: modes and owners of sockets, users, abstract sockets,
//! IPv6, and sockets that the service manager hands over.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use millrace_authority::{Authority, Validity};
use millrace_tests::serving::succeed;
use millrace_tests::{Daemon, client, require_clients, run, run_within, tempdir};

const WAIT: Duration = Duration::from_secs(20);

fn config(nbd: &str, more: &str) -> String {
    format!(
        "[[drive]]\nname = \"d\"\nspec = \"ram:size=1m\"\n[[volume]]\nname = \"v\"\ndrives = \
         [\"d\"]\n[[export]]\nvolume = \"v\"\nnbd = [{nbd}]\n{more}"
    )
}

/// Does the server send a greeting instead of hanging up?
fn greets(mut stream: impl Read) -> bool {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).is_ok() && greeting.starts_with(b"NBDMAGIC")
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

fn own_user() -> u32 {
    fs::metadata("/proc/self").unwrap().uid()
}

#[test]
fn socket_has_its_mode_owner_and_group_and_control_socket_too() {
    // Octal numbers and octal digits as text are one and the same.
    for (mode, control) in [("0o640", "0o606"), ("\"0640\"", "\"0606\"")] {
        let more = format!(
            "[[listener]]\naddress = \"unix:s\"\nmode = {mode}\n[server]\ncontrol-mode = {control}\n"
        );
        let daemon = Daemon::start(&config("\"unix:s\"", &more), &["s", "s.control"]);
        let meta = |name: &str| fs::symlink_metadata(daemon.dir().join(name)).unwrap();
        assert_eq!(meta("s").permissions().mode() & 0o777, 0o640);
        assert_eq!(meta("s.control").permissions().mode() & 0o777, 0o606);
    }
    if !is_root() {
        millrace_require_root();
        return;
    }
    let more = "[[listener]]\naddress = \"unix:s\"\nowner = \"nobody\"\ngroup = 4711\n";
    let daemon = Daemon::start(&config("\"unix:s\"", more), &["s"]);
    let meta = fs::symlink_metadata(daemon.dir().join("s")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (65_534, 4711, 0o660));
}

/// Returns the warnings of a daemon's log, or of `--check`, without time and severity.
fn warnings(text: &str) -> Vec<String> {
    let warning = |line: &str| match line.split_once(" WARN  millrace: ") {
        Some((_, warning)) => Some(warning.to_owned()),
        None => line.contains(" warning: ").then(|| line.replacen(" warning: ", " ", 1)),
    };
    text.lines().filter_map(warning).collect()
}

#[test]
fn way_in_for_others_is_warned_of_by_check_and_start() {
    let authority = Authority::new("CA");
    let issued = authority.issue("server", &["localhost"], Validity::Now);
    let chmod = |mode| {
        fs::set_permissions(&issued.key, fs::Permissions::from_mode(mode)).unwrap();
    };
    let config = |open: bool| {
        let (mode, host, required) = match open {
            true => ("0o666", "0.0.0.0", "required = false, "),
            false => ("0o660", "127.0.0.1", ""),
        };
        let more = format!(
            "vhost-user-blk = \"unix:m\"\nsocket-mode = {mode}\n[[listener]]\naddress = \"unix:s\"\n\
             mode = {mode}\ntls = \"off\"\n[server]\ncontrol-mode = {mode}\nmetrics = \"{host}:0\"\n\
             tls = {{ {required}certificate = \"{}\", key = \"{}\", client-ca = \"{}\" }}\n",
            issued.certificate.display(),
            issued.key.display(),
            authority.ca().display(),
        );
        config("\"unix:s\", \"tcp:127.0.0.1:0\"", &more)
    };
    let said = |open: bool| {
        let dir = tempdir();
        fs::write(dir.path().join("millrace.toml"), config(open)).unwrap();
        let mut check = millrace_tests::millrace();
        check.current_dir(dir.path()).args(["serve", "millrace.toml", "--check"]);
        let output = run_within(&mut check, WAIT);
        assert!(output.status.success(), "{output:?}");
        let checked = warnings(&String::from_utf8_lossy(&output.stderr));
        let daemon = Daemon::start(&config(open), &["s", "m", "s.control"]);
        (checked, warnings(&daemon.stderr()))
    };
    chmod(0o644);
    let (checked, started) = said(true);
    for list in [&checked, &started] {
        assert_eq!(list.len(), 6, "{list:#?}");
        for (warning, (place, words)) in list.iter().zip([
            (
                ":14: nbd: unix:",
                "s: mode = 0o666 lets every user of this host read and write \"v\"",
            ),
            (":19: nbd: tcp:", ": clients without TLS may read and write \"v\": client-ca asks"),
            (":10: vhost-user-blk: unix:", "m: socket-mode = 0o666 lets every user of this host"),
            (":17: control: unix:", "s.control: control-mode = 0o666 lets every user of this host"),
            (
                ":18: metrics: 0.0.0.0:0: ",
                "everybody on the network who reaches this port may read",
            ),
            (":19: tls: every user of this host ", "can read the key in "),
        ]) {
            assert!(warning.contains(place) && warning.contains(words), "{words}: {warning}");
        }
    }
    chmod(0o640);
    let (checked, started) = said(false);
    assert_eq!((checked, started), (Vec::new(), Vec::new()));
}

fn millrace_require_root() {
    println!("skipped in part: only root gives sockets away");
}

#[test]
fn peer_is_let_in_by_its_user_and_log_names_one_that_is_not() {
    let own = own_user();
    let with = |allow: &str| {
        let more = format!("[[listener]]\naddress = \"unix:s\"\n{allow}\n");
        let daemon = Daemon::start(&config("\"unix:s\"", &more), &["s"]);
        let greeted = greets(UnixStream::connect(daemon.dir().join("s")).unwrap());
        (greeted, daemon)
    };
    assert!(with(&format!("allow-users = [{own}]")).0);
    let (greeted, daemon) = with(&format!("allow-users = [{}]", own + 4711));
    assert!(!greeted);
    let said = daemon.stderr();
    let pid = std::process::id();
    let words = format!("refused a client that may not connect: process {pid} of user {own}");
    assert!(said.contains("unix:") && said.contains(&words), "{said}");
    // By another user's process, and by a group that is not its first.
    let Some(setpriv) = client("setpriv").filter(|_| is_root()) else { return };
    let (allowed, daemon) = with("allow-groups = [4711]\nmode = \"0666\"");
    assert!(!allowed);
    fs::set_permissions(daemon.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = daemon.dir().join("s");
    let connect = |groups: &str| {
        let mut command = Command::new(&setpriv);
        command.args(["--reuid=65534", "--regid=65534", groups]);
        run(command.arg("nbdinfo").args(["--size", &uri(&socket)])).status.success()
    };
    require_clients!("nbdinfo");
    assert!(connect("--groups=5,4711") && !connect("--groups=5"));
}

fn uri(socket: &Path) -> String {
    format!("nbd+unix:///v?socket={}", socket.display())
}

#[test]
fn an_abstract_socket_is_served_to_those_that_are_named() {
    let name = format!("millrace-test-{}", std::process::id());
    let nbd = format!("\"unix:@{name}\"");
    let allow = format!(
        "[[listener]]\naddress = {nbd}\nallow-users = [{}]\n[server]\ncontrol = \"off\"\n",
        own_user()
    );
    let _daemon = Daemon::start(&config(&nbd, &allow), &[]);
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    assert!(greets(UnixStream::connect_addr(&address).unwrap()));
    // An abstract socket's name that is in use, or one without access rules, is refused.
    let dir = tempdir();
    for (more, words) in [
        (allow.as_str(), "in use by another server; choose another name"),
        ("[server]\ncontrol = \"off\"\n", "an abstract socket is open to everybody on this host"),
    ] {
        fs::write(dir.path().join("m.toml"), config(&nbd, more)).unwrap();
        let mut command = millrace_tests::millrace();
        let output = run_within(command.current_dir(dir.path()).args(["serve", "m.toml"]), WAIT);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("m.toml:9: nbd: unix:@") && said.contains(words), "{said}");
    }
}

#[test]
fn ipv6_is_served_alone_or_with_ipv4() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6");
        return;
    }
    let port = |daemon: &Daemon, host: &str| {
        let text = daemon.stdout();
        let at = text.split(host).nth(1).unwrap_or_else(|| panic!("no {host} in {text}"));
        at.split('/').next().unwrap().parse::<u16>().unwrap()
    };
    let off = "[server]\ncontrol = \"off\"\n";
    let one = Daemon::start(&config("\"tcp:[::1]:0\"", off), &[]);
    let at = port(&one, "nbd://[::1]:");
    assert!(greets(TcpStream::connect(("::1", at)).unwrap()));
    assert!(TcpStream::connect(("127.0.0.1", at)).is_err());
    // The unspecified address of IPv6 takes both.
    let both = Daemon::start(&config("\"tcp:[::]:0\"", off), &[]);
    let at = port(&both, "nbd://localhost:");
    assert!(greets(TcpStream::connect(("::1", at)).unwrap()));
    assert!(greets(TcpStream::connect(("127.0.0.1", at)).unwrap()));
}

#[test]
fn sockets_that_are_handed_over_are_served_by_their_names() {
    require_clients!("systemd-socket-activate", "nbdinfo");
    let dir = tempdir();
    let socket = dir.path().join("handed");
    let more = "[server]\ncontrol = \"unix:c\"\n";
    let file = dir.path().join("m.toml");
    fs::write(&file, config("\"systemd:nbd\"", more)).unwrap();
    let mut command = Command::new("systemd-socket-activate");
    command.arg("-l").arg(&socket).arg("--fdname=nbd");
    let path = millrace_tests::millrace().get_program().to_owned();
    command.arg(path).arg("serve").arg(&file);
    command.current_dir(dir.path());
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let found = millrace_tests::poll_within(WAIT, || socket.exists().then_some(()));
    assert!(found.is_some());
    // The first connection starts the server.
    let said = succeed(Command::new("nbdinfo").args(["--size", &uri(&socket)]));
    assert_eq!(said.trim(), (1 << 20).to_string());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(socket.exists(), "the socket is the service manager's");
    // A name that was not handed over.
    let mut command = millrace_tests::millrace();
    let output = run_within(command.current_dir(dir.path()).args(["serve", "m.toml"]), WAIT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("systemd:nbd: systemd passed no socket; start"), "{said}");
}
