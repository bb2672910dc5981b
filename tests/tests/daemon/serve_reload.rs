//! `millrace ctl reload`: a running daemon takes another configuration, or goes on as before.
//!
//! Clients of exports that stay are fio and raw NBD. The result is checked with nbdinfo, with `stat
//! --json`, and in the list of the daemon's open files. Each test runs the real binary.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use millrace_tests::control::Control;
use millrace_tests::raw_nbd::{RawNbd, request};
use millrace_tests::serving::{backends, pattern, succeed};
use millrace_tests::{Daemon, millrace, poll_within, require_clients, run, tempdir};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

/// A volume of one file drive, all of one name, with its export at `unix:s`.
fn volume(name: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\nspec = \"file:path={name}.img,size=8m\"\n\
         [[volume]]\nname = \"{name}\"\ndrives = [\"{name}\"]\n\
         [[export]]\nvolume = \"{name}\"\nnbd = \"unix:s\"\n"
    )
}

fn server(backend: &str) -> String {
    format!("[server]\ncontrol = \"unix:c\"\nthreads = 2\nbackend = {backend:?}\n")
}

/// A daemon whose drives' files and sockets lie in its directory.
fn served(config: &str) -> Daemon {
    Daemon::start(config, &["s", "c"])
}

fn reload(daemon: &Daemon, args: &[&str]) -> Command {
    let mut command = millrace();
    command.current_dir(daemon.dir()).args(["ctl", "reload", "--connect", "unix:c"]).args(args);
    command
}

/// Reloads the daemon with this configuration; returns the output.
fn reload_to(daemon: &Daemon, config: &str) -> String {
    fs::write(daemon.dir().join("millrace.toml"), config).unwrap();
    succeed(&mut reload(daemon, &[]))
}

/// Returns the daemon's refusal of this configuration, without the program's name.
fn refused(daemon: &Daemon, config: &str, args: &[&str]) -> String {
    fs::write(daemon.dir().join("millrace.toml"), config).unwrap();
    let output = run(&mut reload(daemon, args));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Names of volumes, drives, exports and groups that are served.
fn names(daemon: &Daemon) -> [Vec<String>; 4] {
    let report = Control::connect(daemon).ok("stats");
    ["volumes", "drives", "exports", "groups"].map(|list| {
        let all = report[list].as_array().unwrap().iter();
        all.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    })
}

/// Images that the daemon has open.
fn open_images(daemon: &Daemon) -> Vec<String> {
    let fds = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let paths = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let names = paths.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let mut images: Vec<String> = names.filter(|name| name.ends_with(".img")).collect();
    images.sort();
    images
}

fn connect(daemon: &Daemon, export: &str) -> RawNbd {
    RawNbd::connect(&daemon.dir().join("s"), export).unwrap()
}

#[test]
fn parts_come_and_go_while_fio_verifies_another_export() {
    require_clients!("fio");
    for backend in backends() {
        let kept = server(backend) + &volume("kept");
        let mut daemon = served(&kept);
        let mut fio = Command::new("fio");
        fio.current_dir(daemon.dir()).stdout(Stdio::piped());
        fio.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--size=8m"]);
        fio.args(["--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1"]);
        fio.args(["--time_based", "--runtime=4", "--thread", "--uri=nbd+unix:///kept?socket=s"]);
        let mut fio = fio.spawn().unwrap();
        let data = pattern(4096, 5);
        for round in 0.. {
            let mut more = format!("{kept}{}", volume("other"));
            if round % 5 == 0 {
                more += "[[group]]\nname = \"gold\"\niops = 5000\n";
                more = more.replace(
                    "volume = \"other\"\nnbd",
                    "volume = \"other\"\ngroup = \"gold\"\nnbd",
                );
                more = more.replace(
                    "volume = \"kept\"\nnbd = \"unix:s\"",
                    "volume = \"kept\"\nnbd = [\"unix:s\", \"unix:t\"]",
                );
            }
            let said = reload_to(&daemon, &more);
            assert!(said.contains("+ volume other\n"), "{said}");
            assert_eq!(said.contains("+ group gold\n"), round % 5 == 0, "{said}");
            assert_eq!(said.contains("+ listener unix:"), round % 5 == 0, "{said}");
            let mut client = connect(&daemon, "other");
            if round > 0 {
                assert_eq!(client.read(round * 4096 - 4096, 4096).unwrap(), data, "it was kept");
            }
            client.write(round * 4096, &data).unwrap();
            drop(client);
            let is_gone = || {
                fs::write(daemon.dir().join("millrace.toml"), &kept).unwrap();
                let output = run(&mut reload(&daemon, &[]));
                output.status.success().then_some(output)
            };
            // The client may be seen to go a little later.
            let output = poll_within(Duration::from_secs(5), is_gone).unwrap();
            assert!(String::from_utf8(output.stdout).unwrap().contains("- drive other\n"));
            assert_eq!(open_images(&daemon), ["kept.img"]);
            if fio.try_wait().unwrap().is_some() {
                break;
            }
            assert!(round < 2000, "fio ends by itself");
        }
        let output = fio.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.contains("err= 0"), "{said}");
        assert_eq!(names(&daemon)[3], ["default"]);
        assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
    }
}

#[test]
fn a_configuration_that_cannot_be_served_changes_nothing() {
    let kept = server("auto") + &volume("kept") + "[[group]]\nname = \"gold\"\nweight = 200\n";
    let mut daemon = served(&kept);
    fs::write(daemon.dir().join("taken.img"), vec![0; 1 << 20]).unwrap();
    let holder = File::open(daemon.dir().join("taken.img")).unwrap();
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    let before = names(&daemon);
    let with = |more: &str| format!("{kept}{}{more}", volume("new"));
    let cases = [
        (kept.replace("threads = 2", "threads = 3"), "[server] threads cannot change"),
        (kept.replace("control = \"unix:c\"", "control = \"unix:d\""), "control cannot change"),
        (kept.replace("weight = 200", "weight = 0"), "weight"),
        (kept.replace("kept.img", "other.img"), "volume kept: drive kept (file:path="),
        (with("[[listener]]\n"), "millrace.toml:"),
        (with("").replace("nbd = \"unix:s\"\n[[group", "nbd = \"unix:no/s\"\n[[group"), "no/s"),
        (with("").replace("path=new.img,size=8m", "path=taken.img"), "taken.img"),
        (with("").replace("path=new.img,size=8m", "path=missing.img"), "missing.img"),
        (with("").replace("new.img", "kept.img"), "is that of drive kept"),
        (
            with("[[export]]\nname = \"x\"\nvolume = \"kept\"\nvhost-user-blk = \"unix:v\"\n"),
            "queues",
        ),
    ];
    for (config, text) in &cases {
        let said = refused(&daemon, config, &[]);
        assert!(said.contains(text), "{text}: {said}");
        assert_eq!(
            (names(&daemon), open_images(&daemon)),
            (before.clone(), vec!["kept.img".into()])
        );
        assert!(!daemon.dir().join("new.img").exists(), "what was made is removed: {text}");
    }
    let mut client = connect(&daemon, "kept");
    client.write(0, &[1; 512]).unwrap();
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn export_in_use_goes_only_when_its_clients_may_be_disconnected() {
    let kept = server("auto") + &volume("kept");
    let guests = "[[drive]]\nname = \"g\"\nspec = \"ram:size=1m\"\n[[volume]]\nname = \"g\"\n\
                  drives = [\"g\"]\n[[export]]\nvolume = \"g\"\nvhost-user-blk = \"unix:vm\"\n";
    let both = format!("{kept}{}{guests}", volume("other"));
    let mut daemon = served(&kept);
    assert!(reload_to(&daemon, &both).contains("+ export g\n"));
    let (mut client, mut stays) = (connect(&daemon, "other"), connect(&daemon, "kept"));
    let guest = UnixStream::connect(daemon.dir().join("vm")).unwrap();
    let both_told = || {
        let said = refused(&daemon, &kept, &[]);
        let guest_is_told = said.contains("export g is in use by client 50000 (process ");
        (guest_is_told && said.contains("export other is in use by client ")).then_some(())
    };
    poll_within(Duration::from_secs(5), both_told).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    client.send(&request(0, 1, 0, 4096)).unwrap();
    let said = succeed(&mut reload(&daemon, &["--disconnect"]));
    assert!(said.contains("- export other\n") && said.contains("- export g\n"), "{said}");
    assert_eq!(client.reply().unwrap(), (0, 1), "what was in flight is answered");
    client.receive(&mut [0; 4096]).unwrap();
    assert!(client.is_closed_by_server());
    assert!(!daemon.dir().join("vm").exists());
    drop(guest);
    stays.write(0, &[9; 512]).unwrap();
    assert_eq!((open_images(&daemon), names(&daemon)[0].len()), (vec!["kept.img".into()], 1));
    // The other volume comes back with its data.
    reload_to(&daemon, &both);
    assert_eq!(connect(&daemon, "other").read(0, 4096).unwrap(), [7; 4096]);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

/// A cached volume over a drive that fails its writes.
fn failing(folder: &Path) -> String {
    let state = folder.join("state");
    fs::create_dir(&state).unwrap();
    "[[drive]]\nname = \"bad\"\nspec = \"fault:drive=(file:path=bad.img,size=8m),status=eio,op=write\"\n\
         [[volume]]\nname = \"bad\"\ndrives = [\"bad\"]\n[volume.cache]\nsize = \"4m\"\n\
         [[export]]\nvolume = \"bad\"\nnbd = \"unix:s\"\n"
        .to_owned()
}

#[test]
fn volume_that_cannot_be_flushed_stays_until_it_is_forced_to_go() {
    let dir = tempdir();
    let failing = failing(dir.path());
    let kept = server("auto") + "state = \"state\"\n" + &volume("kept");
    let both = format!("{kept}{failing}");
    let mut daemon = Daemon::start_in(dir, &kept, &["s", "c"], &[]);
    reload_to(&daemon, &both);
    connect(&daemon, "bad").write(0, &[3; 4096]).unwrap();
    let marks = || fs::read_to_string(daemon.dir().join("state/caches")).unwrap();
    assert!(marks().contains("dirty \"bad\""), "{}", marks());
    let is_refused = || {
        let said = refused(&daemon, &kept, &[]);
        said.contains("volume bad: 4096 bytes are in its cache only").then_some(said)
    };
    poll_within(Duration::from_secs(20), is_refused).unwrap();
    assert_eq!(connect(&daemon, "bad").read(0, 4096).unwrap(), [3; 4096], "it is served as before");
    let said = succeed(&mut reload(&daemon, &["--force"]));
    assert!(said.contains("warning: bad: flush: ") && said.contains("- volume bad\n"), "{said}");
    let lost = "warning: volume bad: 4096 bytes lost, the first 4096 from byte 0 on";
    assert!(said.contains(lost), "{said}");
    assert_eq!(names(&daemon)[0], ["kept"]);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn a_dirty_cache_is_written_before_its_volume_goes() {
    let kept = server("auto") + &volume("kept");
    let cached =
        volume("cached").replace("[[export]]", "[volume.cache]\nsize = \"8m\"\n[[export]]");
    let mut daemon = served(&kept);
    reload_to(&daemon, &format!("{kept}{cached}"));
    let data = pattern(4 << 20, 3);
    connect(&daemon, "cached").write(0, &data).unwrap();
    let is_gone = || {
        fs::write(daemon.dir().join("millrace.toml"), &kept).unwrap();
        run(&mut reload(&daemon, &[])).status.success().then_some(())
    };
    poll_within(Duration::from_secs(5), is_gone).unwrap();
    let image = fs::read(daemon.dir().join("cached.img")).unwrap();
    assert!(image[..data.len()] == data, "the file has what was written");
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn stripe_with_workers_comes_beside_another_and_goes_before_it() {
    let stripe = |name: &str| {
        let drive = |n: u32| {
            format!("[[drive]]\nname = \"{name}{n}\"\nspec = \"file:path={name}{n}.img,size=4m\"\n")
        };
        let drives = drive(0) + &drive(1);
        format!(
            "{drives}[[volume]]\nname = \"{name}\"\ndrives = [\"{name}0\", \"{name}1\"]\n\
             layout = \"stripe\"\nserving = \"per-drive\"\n\
             [[export]]\nvolume = \"{name}\"\nnbd = \"unix:s\"\n"
        )
    };
    let first = server("auto") + &stripe("first") + &stripe("last");
    let mut daemon = served(&first);
    let mut client = connect(&daemon, "first");
    let data = pattern(1 << 20, 11);
    client.write(0, &data).unwrap();
    // A thread works for drives of both volumes; the volume `last` goes, `first` goes on.
    let said = reload_to(&daemon, &(server("auto") + &stripe("first")));
    assert!(said.contains("- drive last1\n"), "{said}");
    assert_eq!(open_images(&daemon), ["first0.img", "first1.img"]);
    assert!(client.read(0, 1 << 20).unwrap() == data);
    reload_to(&daemon, &first);
    let mut last = connect(&daemon, "last");
    last.write(0, &data).unwrap();
    assert!(last.read(0, 1 << 20).unwrap() == data && client.read(0, 1 << 20).unwrap() == data);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn sighup_reads_the_file_again_and_a_dry_run_changes_nothing() {
    let kept = server("auto") + &volume("kept");
    let mut daemon = served(&kept);
    let both = kept.clone() + &volume("other");
    fs::write(daemon.dir().join("millrace.toml"), &both).unwrap();
    let said = succeed(&mut reload(&daemon, &["--dry-run"]));
    assert!(said.contains("+ export other\n"), "{said}");
    assert!(said.contains("can be loaded; nothing was changed"), "{said}");
    assert!(!daemon.dir().join("other.img").exists(), "what was made is removed");
    assert_eq!(names(&daemon)[0], ["kept"]);
    let said = succeed(&mut reload(&daemon, &["--dry-run", "--json"]));
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&report["dry_run"], &report["changes"][0]["change"]), (&true.into(), &"+".into()));
    let check = || {
        let mut command = millrace();
        run(command.current_dir(daemon.dir()).args(["serve", "millrace.toml", "--check"]))
    };
    let output = check();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("+ export other\n"), "{said}");
    fs::write(daemon.dir().join("millrace.toml"), both.replace("= 2", "= 3")).unwrap();
    let output = check();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("[server] threads cannot change"), "{said}");
    fs::write(daemon.dir().join("millrace.toml"), &both).unwrap();
    daemon.signal(libc::SIGHUP);
    let is_served = || (names(&daemon)[0].len() == 2).then_some(());
    poll_within(Duration::from_secs(5), is_served).unwrap();
    fs::write(daemon.dir().join("millrace.toml"), "no toml").unwrap();
    daemon.signal(libc::SIGHUP);
    let is_said = || daemon.stderr().contains("SIGHUP: nothing has changed: ").then_some(());
    poll_within(Duration::from_secs(5), is_said).unwrap();
    assert_eq!(names(&daemon)[0], ["kept", "other"]);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn settings_that_were_set_live_are_part_of_the_difference() {
    let group = "[[group]]\nname = \"gold\"\nweight = 200\n";
    let config = server("auto") + &volume("kept") + group;
    let mut daemon = served(&config);
    let set = |args: &[&str]| {
        let mut command = millrace();
        command.current_dir(daemon.dir()).args(["ctl", "set", "--connect", "unix:c"]).args(args);
        succeed(&mut command)
    };
    set(&["group", "gold", "weight=400"]);
    set(&["kept", "scheduler=fair"]);
    let said = succeed(&mut reload(&daemon, &[]));
    assert!(said.contains("~ drive kept scheduler fair -> none\n"), "{said}");
    assert!(said.contains("~ group gold weight 400 -> 200\n"), "{said}");
    let said = succeed(&mut reload(&daemon, &[]));
    assert!(said.ends_with("no change to what the daemon serves\n"), "{said}");
    let default = "[[group]]\nname = \"default\"\niops = 1000\n";
    let said = reload_to(&daemon, &(config.clone() + default));
    assert!(said.contains("~ group default iops none -> 1k\n"), "{said}");
    let said = reload_to(&daemon, &config.replace(group, ""));
    assert!(said.contains("~ group default iops 1k -> none\n"), "{said}");
    assert!(said.contains("- group gold\n"), "{said}");
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn sections_come_and_go_one_by_one_and_are_saved() {
    let config = format!("# by hand\n{}{}", server("auto"), volume("kept"));
    let mut daemon = served(&config);
    let ctl = |args: &str| {
        let mut command = millrace();
        command.current_dir(daemon.dir()).arg("ctl").args(args.split_whitespace());
        run(command.args(["--connect", "unix:c"]))
    };
    let done = |args: &str| {
        let output = ctl(args);
        assert!(output.status.success(), "{args}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let refused = |args: &str, text: &str| {
        let output = ctl(args);
        assert_eq!(output.status.code(), Some(2), "{args}: {output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(text), "{args}: {said}");
    };
    let file = daemon.dir().join("millrace.toml");
    done("add drive new spec=file:path=new.img,size=4m");
    refused("add export new volume=new nbd=unix:s", "there is no volume");
    refused("add volume new drives=new layout=odd", "layout");
    done("add volume new drives=new cache.size=4m --dry-run");
    assert_eq!(names(&daemon)[0], ["kept"]);
    assert!(done("add volume new drives=new cache.size=4m").contains("+ volume new\n"));
    assert!(done("add export new volume=new nbd=unix:s").contains("+ export new\n"));
    done("add group gold weight=300");
    done("set group gold weight=400");
    refused("add group gold", "group \"gold\" exists already");
    done("set kept scheduler=fair");
    let unsaved = "millrace.toml was read; `millrace ctl save` keeps these changes, `reload` \
                   discards them:\n  + drive new\n  + volume \
                   new\n  + group gold\n  + export new\n  ~ drive kept scheduler none -> fair\n";
    assert!(done("get").ends_with(unsaved), "{}", done("get"));
    assert!(done("get group gold").ends_with("`reload` discards them:\n  + group gold\n"));
    let get = done("get kept --json");
    let get: Value = serde_json::from_str(&get).unwrap();
    assert_eq!(get["unsaved"]["changes"][0]["detail"], "scheduler none -> fair");
    done("set kept scheduler=none");
    assert_eq!(fs::read_to_string(&file).unwrap(), config, "nothing is written unasked");
    connect(&daemon, "new").write(0, &[5; 4096]).unwrap();
    done("save");
    assert!(!done("get").contains("changed since"), "the file has all");
    let saved = fs::read_to_string(&file).unwrap();
    assert!(saved.starts_with("# by hand\n") && saved.contains("weight = 400"), "{saved}");
    assert!(done("reload").contains("no change to what the daemon serves"));
    fs::write(&file, saved.clone() + "# edited\n").unwrap();
    refused("save", "edited since the daemon read it");
    fs::rename(&file, daemon.dir().join("away")).unwrap();
    let said = done("get");
    assert!(
        said.contains("\nthe running configuration was not compared with its file: "),
        "{said}"
    );
    fs::rename(daemon.dir().join("away"), &file).unwrap();
    done("save copy.toml");
    refused("save copy.toml", "this file exists already");
    // Not a text: a disk image, for example.
    let image = daemon.dir().join("disk.img");
    fs::write(&image, [0xff; 512]).unwrap();
    refused("save disk.img", "this file exists already");
    assert_eq!(fs::read(&image).unwrap(), [0xff; 512]);
    refused("save /tmp/millrace-elsewhere.toml", "save the file there");
    assert_eq!(fs::read_to_string(daemon.dir().join("copy.toml")).unwrap(), saved);
    refused("remove volume new", "volume new is used by export new; remove export new first");
    refused("remove drive new", "drive new is used by volume new; remove volume new first");
    let is_gone = || ctl("remove export new").status.success().then_some(());
    poll_within(Duration::from_secs(5), is_gone).unwrap();
    done("remove volume new");
    done("remove drive new");
    refused("remove drive new", "there is no drive \"new\"");
    assert_eq!(open_images(&daemon), ["kept.img"]);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
    // A daemon with the saved copy serves the configuration at the time of saving.
    let daemon_of_copy = Daemon::start(&saved.replace("=new.img", "=again.img"), &["s", "c"]);
    assert_eq!(names(&daemon_of_copy)[0], ["kept", "new"]);
}

#[test]
fn an_export_that_loses_the_way_of_its_clients_is_in_use() {
    let nbd = "nbd = \"unix:s\"\n";
    let guests = "vhost-user-blk = \"unix:vm\"\nqueues = 1\n";
    let both = volume("both") + guests;
    let kept = server("auto") + &volume("kept");
    let mut daemon = served(&(kept.clone() + &both));
    let mut client = connect(&daemon, "both");
    let said = refused(&daemon, &(kept.clone() + &both.replace(nbd, "")), &[]);
    assert!(said.contains("export both is in use by client "), "{said}");
    let guest = UnixStream::connect(daemon.dir().join("vm")).unwrap();
    let without = kept.clone() + &both.replace(guests, "");
    fs::write(daemon.dir().join("millrace.toml"), without).unwrap();
    // Succeeds until the daemon has accepted the guest's connection.
    let is_refused = || {
        let output = run(&mut reload(&daemon, &["--dry-run"]));
        let said = String::from_utf8_lossy(&output.stderr);
        said.contains("export both is in use by client 50000 (process ").then_some(())
    };
    poll_within(Duration::from_secs(5), is_refused).unwrap();
    client.write(0, &[1; 512]).unwrap();
    drop(guest);
    let is_gone = || {
        fs::write(daemon.dir().join("millrace.toml"), kept.clone() + &both.replace(guests, ""))
            .unwrap();
        let output = run(&mut reload(&daemon, &[]));
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    };
    let said = poll_within(Duration::from_secs(5), is_gone).unwrap();
    assert!(said.contains("~ export both vhost-user-blk unix:"), "{said}");
    client.write(0, &[2; 512]).unwrap();
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn a_group_of_each_client_goes_and_comes_back() {
    let kept = server("auto") + &volume("kept");
    let each = volume("other") + "group = \"each\"\ngroup-each = true\n";
    let shared = volume("other") + "group = \"each\"\n";
    let group = "[[group]]\nname = \"each\"\nweight = 50\n";
    let mut daemon = served(&(kept.clone() + group + &each));
    for round in 0..3 {
        let mut client = connect(&daemon, "other");
        client.write(0, &[round; 512]).unwrap();
        drop(client);
        let without = kept.clone() + &volume("other");
        let is_taken = |config: &str| {
            fs::write(daemon.dir().join("millrace.toml"), config).unwrap();
            let output = run(&mut reload(&daemon, &[]));
            output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
        };
        if round == 1 {
            // The group stays, and its clients share it.
            let config = kept.clone() + group + &shared;
            poll_within(Duration::from_secs(5), || is_taken(&config)).unwrap();
            assert_eq!(names(&daemon)[3], ["default", "each"]);
        }
        let said = poll_within(Duration::from_secs(5), || is_taken(&without)).unwrap();
        assert!(said.contains("- group each\n") && !said.contains("warning"), "{said}");
        assert_eq!(names(&daemon)[3], ["default"]);
        reload_to(&daemon, &(kept.clone() + group + &each));
    }
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn other_spelling_of_a_path_is_no_change_in_a_dry_run() {
    let kept = server("auto") + &volume("kept");
    let mut daemon = served(&kept);
    let dir = daemon.dir().display().to_string();
    std::os::unix::fs::symlink(daemon.dir(), daemon.dir().join("link")).unwrap();
    for (name, socket) in [("./kept.img", "./s"), ("link/kept.img", "link/s")] {
        let other = kept.replace("=kept.img", &format!("={name}"));
        let other = other.replace("unix:s", &format!("unix:{socket}"));
        let said = reload_to(&daemon, &other.replace("unix:c", &format!("unix:{dir}/c")));
        assert!(said.ends_with("no change to what the daemon serves\n"), "{name}: {said}");
    }
    File::create(daemon.dir().join("small.img")).unwrap().set_len(4096).unwrap();
    let more = kept + &volume("small").replace("size=8m", "size=8m,grow=on");
    fs::write(daemon.dir().join("millrace.toml"), &more).unwrap();
    succeed(&mut reload(&daemon, &["--dry-run"]));
    assert_eq!(fs::metadata(daemon.dir().join("small.img")).unwrap().len(), 4096);
    succeed(&mut reload(&daemon, &[]));
    assert_eq!(fs::metadata(daemon.dir().join("small.img")).unwrap().len(), 8 << 20);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn a_stuck_volume_keeps_nobody_from_asking_and_goes_by_force() {
    let kept = server("auto") + &volume("kept");
    let stuck = "[[drive]]\nname = \"x\"\nspec = \"fault:drive=(ram:size=8m),op=write,stuck=true\"\n\
                 [[volume]]\nname = \"x\"\ndrives = [\"x\"]\n[[export]]\nvolume = \"x\"\nnbd = \"unix:s\"\n";
    let mut daemon = served(&(kept.clone() + stuck));
    let mut client = connect(&daemon, "x");
    client.send(&request(1, 1, 0, 4096)).unwrap();
    client.send(&[1; 4096]).unwrap();
    fs::write(daemon.dir().join("millrace.toml"), &kept).unwrap();
    let mut slow = reload(&daemon, &["--disconnect"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut asked = 0;
    while slow.try_wait().unwrap().is_none() {
        assert_eq!(Control::connect(&daemon).ok("version")["control"], 1);
        asked += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    let output = slow.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("x: requests are in flight"), "{said}");
    assert!(asked > 20, "{asked} answers while the reload waited");
    assert_eq!(names(&daemon)[0], ["kept", "x"]);
    let said = refused(&daemon, &kept, &["--disconnect"]);
    assert!(said.contains("x: requests are in flight"), "again: {said}");
    let said = succeed(&mut reload(&daemon, &["--force", "--disconnect"]));
    assert!(said.contains("warning: x: ") && said.contains("- volume x\n"), "{said}");
    assert!(client.is_closed_by_server());
    let mut other = connect(&daemon, "kept");
    other.write(0, &[1; 512]).unwrap();
    daemon.kill9();
}

#[test]
fn metrics_come_move_and_go_and_address_in_use_changes_nothing() {
    let config = |metrics: &str| server("auto") + metrics + &volume("kept");
    let mut daemon = served(&config(""));
    let free_port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let key = |address: SocketAddr| format!("metrics = \"{address}\"\n");
    let page = |address: SocketAddr| -> Option<String> {
        let mut socket = TcpStream::connect(address).ok()?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        let mut text = String::new();
        socket.read_to_string(&mut text).ok()?;
        Some(text)
    };
    let has_page = |address| page(address).is_some_and(|text| text.contains("millrace_uptime"));
    let (first, second) = (free_port(), free_port());
    let mut client = connect(&daemon, "kept");
    let said = reload_to(&daemon, &config(&key(first)));
    assert!(said.starts_with(&format!("~ server metrics none -> {first}\n")), "{said}");
    assert!(has_page(first));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let in_use = taken.local_addr().unwrap();
    let other = config(&key(in_use)) + &volume("other");
    let said = refused(&daemon, &other, &[]);
    let problem = format!("millrace.toml:5: metrics: {in_use}: in use by another server");
    assert!(said.contains(&problem), "{said}");
    assert!(has_page(first) && names(&daemon)[0] == ["kept"]);
    // A part that cannot be served takes nothing else along.
    let broken = config(&key(second)) + &volume("other").replace(",size=8m", "");
    assert!(refused(&daemon, &broken, &[]).contains("other.img"));
    assert!(has_page(first) && page(second).is_none());
    fs::write(daemon.dir().join("millrace.toml"), config(&key(second))).unwrap();
    let said = succeed(&mut reload(&daemon, &["--dry-run"]));
    assert!(said.starts_with(&format!("~ server metrics {first} -> {second}\n")), "{said}");
    assert!(has_page(first) && page(second).is_none());
    succeed(&mut reload(&daemon, &[]));
    let is_closed = |address: SocketAddr| {
        let refused = || TcpStream::connect(address).is_err().then_some(());
        poll_within(Duration::from_secs(5), refused)
    };
    assert!(has_page(second) && is_closed(first).is_some());
    let everywhere = SocketAddr::from(([0, 0, 0, 0], second.port()));
    let said = refused(&daemon, &config(&key(everywhere)), &[]);
    assert!(said.contains("reload without metrics first"), "{said}");
    let said = reload_to(&daemon, &config(""));
    assert!(said.starts_with(&format!("~ server metrics {second} -> none\n")), "{said}");
    assert!(is_closed(second).is_some());
    client.write(0, &[1; 512]).unwrap();
    assert!(daemon.stdout().contains(&format!("metrics at http://{second}/metrics\n")));
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}
