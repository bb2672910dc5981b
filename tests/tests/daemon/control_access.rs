//! Access to the control socket: places where a verb finds the daemon, users that may read or also
//! change something, and the list of connected users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use millrace_clients::nbd::Client;
use millrace_nbd::client::{Address, NbdUri};
use millrace_nbd::{Command as NbdCommand, Request};
use millrace_tests::serving::succeed;
use millrace_tests::{Daemon, client, copy_millrace, millrace, poll_within, run, tempdir};
use tempfile::TempDir;

/// A user and group of no other test.
const STRANGER: &str = "54321";

/// A volume with this name, and keys of `[server]`.
fn config(volume: &str, server: &str) -> String {
    format!(
        "[[drive]]\nname = \"d\"\nspec = \"ram:size=1m\"\n[[volume]]\nname = \"{volume}\"\n\
         drives = [\"d\"]\n[[export]]\nvolume = \"{volume}\"\nnbd = \"unix:s\"\n[server]\n{server}\n"
    )
}

/// Serves a volume with the control socket at `control`, in a directory that others may look into.
fn serve(volume: &str, control: &str, more: &str) -> Daemon {
    let dir = tempdir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(dir.path().join(control).parent().unwrap()).unwrap();
    let server = format!("control = \"unix:{control}\"\n{more}");
    Daemon::start_in(dir, &config(volume, &server), &[control], &[])
}

/// A verb in a directory, with no daemon named.
fn verb(dir: &Path, words: &[&str]) -> Command {
    let mut command = millrace();
    command.args(words).current_dir(dir).env_remove("MILLRACE_CONTROL");
    command.env("XDG_RUNTIME_DIR", dir.join("no-such-folder"));
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// The program in a directory where every user may run it.
fn program_for_all() -> (TempDir, PathBuf) {
    let dir = tempdir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("millrace");
    copy_millrace(&program);
    (dir, program)
}

/// A command run by a user other than root, in these groups; `None` if the machine lacks root or
/// setpriv.
fn as_stranger(program: &Path, groups: &str) -> Option<Command> {
    let setpriv = client("setpriv").filter(|_| is_root());
    if setpriv.is_none() {
        millrace_require::skip("a user of its own takes root and setpriv");
    }
    let mut command = Command::new(setpriv?);
    command.args([format!("--reuid={STRANGER}"), format!("--regid={STRANGER}")]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.arg(format!("--groups={groups}")),
    };
    command.arg(program);
    Some(command)
}

#[test]
fn verb_finds_daemon_by_option_by_variable_and_in_each_folder() {
    let named = serve("named", "c", "");
    let near = serve("near", "millrace-data/control.sock", "");
    let beside = serve("beside", "x.sock.control", "");
    let of_user = serve("of-user", "millrace/control.sock", "");
    let nowhere = tempdir();
    let volume = |command: &mut Command| {
        let text = succeed(command.arg("get"));
        text.lines().next().unwrap_or_default().trim_end_matches(':').to_owned()
    };
    let ctl = |dir: &Path| verb(dir, &["ctl"]);
    let socket = format!("unix:{}", named.dir().join("c").display());
    let mut by_option = ctl(near.dir());
    by_option.env("MILLRACE_CONTROL", "unix:/no-such-socket");
    assert_eq!(
        succeed(by_option.args(["get", "--connect", &socket])).lines().next(),
        Some("named:")
    );
    assert_eq!(volume(ctl(near.dir()).env("MILLRACE_CONTROL", &socket)), "named");
    assert_eq!(volume(&mut ctl(near.dir())), "near");
    assert_eq!(volume(&mut ctl(beside.dir())), "beside");
    assert_eq!(volume(ctl(nowhere.path()).env("XDG_RUNTIME_DIR", of_user.dir())), "of-user");
    // The nearest is asked.
    assert_eq!(volume(ctl(beside.dir()).env("XDG_RUNTIME_DIR", of_user.dir())), "beside");
    let mut wrong = ctl(nowhere.path());
    let output = run(wrong.arg("get").env("MILLRACE_CONTROL", "tcp:7"));
    assert!(said(&output).starts_with("millrace: MILLRACE_CONTROL=\"tcp:7\": "), "{output:?}");
}

#[test]
fn places_are_listed_without_a_daemon_and_ambiguous_if_equal() {
    let mut dead = serve("dead", "millrace-data/control.sock", "");
    dead.kill9();
    for words in [&["stat"][..], &["top"], &["locks"], &["trace", "record"], &["ctl", "get"]] {
        let output = run(&mut verb(dead.dir(), words));
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.starts_with("millrace: no daemon found: start `millrace serve`"), "{text}");
        for line in [
            "\n  millrace-data/control.sock: no daemon serves this socket any more\n",
            "\n  .: no control socket\n",
            "/no-such-folder/millrace: no such directory\n",
            "\n  /run/millrace: ",
        ] {
            assert!(text.contains(line), "{words:?}: no {line:?} in {text}");
        }
    }
    let one = serve("one", "a.control", "");
    let second = config("two", &format!("control = \"unix:{}/b.control\"", one.dir().display()));
    let _two = Daemon::start(&second, &["s"]);
    let output = run(&mut verb(one.dir(), &["stat"]));
    let choice =
        "several daemons are running; choose one with --connect: unix:a.control, unix:b.control";
    assert!(said(&output).contains(choice), "{output:?}");
}

#[test]
fn a_server_of_another_user_is_not_trusted_unless_it_is_named() {
    let (_folder, program) = program_for_all();
    let Some(mut command) = as_stranger(&program, "") else { return };
    let dir = tempdir();
    fs::create_dir(dir.path().join("millrace-data")).unwrap();
    fs::write(
        dir.path().join("m.toml"),
        config("v", "control = \"unix:millrace-data/control.sock\""),
    )
    .unwrap();
    for place in [dir.path().to_owned(), dir.path().join("millrace-data")] {
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let daemon = Daemon::start_command(dir, command.args(["serve", "m.toml"]), &["s"]);
    let output = run(&mut verb(daemon.dir(), &["stat"]));
    let text = said(&output);
    let line = format!("millrace-data/control.sock: served by user {STRANGER}: only daemons of");
    assert!(output.status.code() == Some(2) && text.contains(&line), "{text}");
    let socket = "unix:millrace-data/control.sock";
    succeed(&mut verb(daemon.dir(), &["stat", "--connect", socket]));
    // Another daemon instead, with a warning.
    let other = serve("other", "millrace/control.sock", "");
    let output = run(verb(daemon.dir(), &["ctl", "get"]).env("XDG_RUNTIME_DIR", other.dir()));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("other:"), "{output:?}");
    assert!(said(&output).contains(&line) && said(&output).contains(" instead"));
}

#[test]
fn control_group_user_reads_and_is_refused_changes() {
    let (_folder, program) = program_for_all();
    let (monitor, admin) = ("54001", "54002");
    let Some(_) = as_stranger(&program, "") else { return };
    let more = format!("control-group = {monitor}\ncontrol-admin-group = {admin}\n");
    let daemon = serve("v", "c", &more);
    let socket = format!("unix:{}", daemon.dir().join("c").display());
    let ask = |groups: &str, words: &[&str]| {
        let mut command = as_stranger(&program, groups).expect("there was one before");
        run(command.args(words).args(["--connect", &socket]).current_dir("/"))
    };
    for words in [
        &["stat", "--json"][..],
        &["ctl", "get"],
        &["ctl", "why", "v", "0.1"],
        &["locks", "--for", "100ms"],
    ] {
        let output = ask(monitor, words);
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
    let name = daemon.dir().join("t").display().to_string();
    let output = ask(monitor, &["trace", "record", "--duration", "100ms", "-o", &name]);
    assert!(output.status.success(), "{output:?}");
    for words in [
        &["ctl", "set", "v", "scheduler=deadline"][..],
        &["ctl", "set", "group", "default", "weight=7"],
        &["ctl", "resize", "v"],
        &["ctl", "acknowledge", "v"],
    ] {
        let output = ask(monitor, words);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains("this client may only read: process "), "{words:?}: {text}");
        let who = format!(" of user {STRANGER} and group {STRANGER}; only root and group");
        assert!(text.contains(&who) && text.contains("54002 (control-admin-group)"), "{text}");
    }
    let set = ["ctl", "set", "v", "scheduler=deadline"];
    let output = ask(&format!("{monitor},{admin}"), &set);
    assert!(output.status.success(), "{output:?}");
    let logged = r#"requested {"id":1,"scheduler":"deadline","verb":"set","volume":"v"}"#;
    assert_eq!(daemon.stderr().matches(logged).count(), 1, "of three that were asked for");
    // A user in neither group gets an error that describes the socket file's permissions.
    let output = ask("", &["stat"]);
    let line = "this user may not open the socket (owner root, group 54001, mode 660)";
    assert!(said(&output).contains(line), "{output:?}");
}

#[test]
fn daemon_user_may_change_it_and_admins_may_open_its_socket() {
    let (_folder, program) = program_for_all();
    let Some(mut command) = as_stranger(&program, "54002") else { return };
    let dir = tempdir();
    chown(dir.path(), Some(STRANGER.parse().unwrap()), None).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let text = config("v", "control = \"unix:c\"\ncontrol-admin-group = 54002");
    fs::write(dir.path().join("m.toml"), text).unwrap();
    let daemon = Daemon::start_command(dir, command.args(["serve", "m.toml"]), &["c"]);
    let socket = format!("unix:{}", daemon.dir().join("c").display());
    let set = ["ctl", "set", "v", "scheduler=deadline", "--connect", &socket];
    let own = run(as_stranger(&program, "").unwrap().args(set).current_dir("/"));
    assert!(own.status.success(), "{own:?}");
    let mut member = Command::new(client("setpriv").unwrap());
    member.args(["--reuid=54400", "--regid=54002", "--clear-groups"]).arg(&program);
    let member = run(member.args(set).current_dir("/"));
    assert!(member.status.success(), "{member:?}");
}

#[test]
fn log_level_changes_while_daemon_serves_and_versions_are_told() {
    let daemon = serve("v", "c", "");
    let ctl = |words: &[&str]| {
        let mut command = verb(daemon.dir(), &["ctl"]);
        run(command.args(words).args(["--connect", "unix:c"]))
    };
    let printed = |words: &[&str]| String::from_utf8_lossy(&ctl(words).stdout).into_owned();
    let clients_are_logged = || {
        let before = daemon.stderr().len();
        drop(UnixStream::connect(daemon.dir().join("s")).unwrap());
        let is_logged = || daemon.stderr()[before..].contains(" DEBUG ").then_some(());
        poll_within(Duration::from_secs(2), is_logged).is_some()
    };
    assert_eq!(printed(&["log-level"]), "log level info\n");
    assert!(!clients_are_logged());
    assert_eq!(printed(&["log-level", "debug"]), "log level is debug; it was info\n");
    assert!(clients_are_logged());
    let output = ctl(&["log-level", "loud"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("unknown log level \"loud\"; choose off, error, warn"),
        "{output:?}"
    );
    let text = printed(&["version"]);
    let process = format!(", process {}, at unix:c\n", daemon.pid());
    assert!(text.starts_with("program  millrace ") && text.ends_with(&process), "{text}");
}

#[test]
fn clients_are_listed_and_the_one_that_is_named_is_disconnected() {
    let daemon = serve("v", "c", "");
    let ctl = |words: &[&str]| {
        let mut command = verb(daemon.dir(), &["ctl"]);
        run(command.args(words).args(["--connect", "unix:c"]))
    };
    let printed = |words: &[&str]| String::from_utf8_lossy(&ctl(words).stdout).into_owned();
    assert_eq!(printed(&["clients"]), "no client is connected\n");
    let connect = || {
        let address = Address::Unix { path: daemon.dir().join("s") };
        Client::connect(&NbdUri { address, name: "v".to_owned() }).unwrap()
    };
    let read = Request { cookie: 1, flags: 0, command: NbdCommand::Read, offset: 0, length: 8192 };
    let (mut first, mut second) = (connect(), connect());
    assert_eq!(first.call(&read, vec![0; 8192]).unwrap().errno, None);
    let text = printed(&["clients"]);
    let rows: Vec<&str> = text.lines().collect();
    assert!(rows[0].trim_start().starts_with("client  export  group"), "{text}");
    let mine = rows.iter().find(|row| row.contains("8 KiB")).expect("the one that has read");
    let process = format!("process {}, user ", std::process::id());
    assert!(mine.contains(&process) && mine.contains("  v  ") && rows.len() == 3, "{text}");
    assert_eq!(printed(&["clients", "other"]), "export other has no connected clients\n");
    let json: serde_json::Value = serde_json::from_str(&printed(&["clients", "--json"])).unwrap();
    let clients = json["clients"].as_array().unwrap();
    let reader = clients.iter().find(|client| client["bytes"] == 8192).unwrap();
    assert_eq!((&reader["requests"], &reader["group"]), (&1.into(), &"default".into()));
    let number = reader["client"].to_string();
    let text = printed(&["disconnect", &number]);
    assert!(text.starts_with(&format!("client {number} ({process}")), "{text}");
    assert!(text.ends_with(") of export v is disconnected\n"), "{text}");
    assert!(first.call(&read, vec![0; 8192]).is_err());
    assert_eq!(second.call(&read, vec![0; 8192]).unwrap().errno, None);
    let output = ctl(&["disconnect", "777"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("no client 777; `millrace ctl clients` shows"), "{output:?}");
    let as_json = |words: &[&str]| -> serde_json::Value {
        let output = ctl(words);
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(2), &b""[..]), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let error = &as_json(&["disconnect", "777", "--json"])["error"];
    assert_eq!(error["kind"], "not-found");
    assert_eq!(error["message"], "there is no client 777; `millrace ctl clients` shows them");
    assert_eq!(as_json(&["get", "other", "--json"])["error"]["kind"], "failed");
}
