//! A real guest: QEMU without hardware acceleration, Debian's kernel, and a shell to command it.
//!
//! Owns the virtual machine; dropping it kills QEMU and, if the test fails, prints all output of
//! the guest, its kernel and QEMU. Called by the tests named `vhost_guest*`; calls QEMU. The
//! guest's disk `/dev/vda` is a vhost-user-blk device of two queues at a socket, whichever server
//! listens there. The guest's memory is shared with it, and QEMU reconnects when the server comes
//! back. The disk is in a slot, where another one can take its place. Serial port 0 is the
//! kernel's, so that no kernel message can split an answer; port 1 is the shell's (`console`).
//!
//! A boot takes 5 s on two quiet CPUs, and each command 10 ms: tests share a guest.

mod console;
mod cpio;
mod image;
mod kernel;
mod monitor;
mod peer;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use self::console::Console;
use self::monitor::Monitor;
use crate::process::create;
use crate::run;

pub use self::image::Image;
pub use self::peer::{StorageDaemon, config};

/// Limit of a boot on two cores that are busy with other work.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// Limit for commands that take a second or two on a quiet machine.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// The archive of programs, its copy in files, and room to work.
const MEMORY: &str = "memory-backend-memfd,id=memory,size=512M,share=on";

/// Slot of the disk.
const SLOT: &str = "port0";

/// A running virtual machine.
pub struct Guest {
    qemu: Child,
    console: Console,
    dir: TempDir,
}

/// QEMU's reaction when the server of a guest's disk goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconnect {
    /// Tries to connect every second.
    EverySecond,
    /// Does not connect again.
    Never,
}

impl Guest {
    /// Boots `image` with the vhost-user-blk server at `socket` as its disk /dev/vda.
    ///
    /// # Panics
    ///
    /// When its shell is not there within 180 s, or /dev/vda is missing.
    #[must_use]
    pub fn boot(image: &Image, socket: &Path) -> Self {
        let start = Instant::now();
        let dir = crate::tempdir();
        let mut qemu = spawn(image, socket, dir.path());
        let to_guest = qemu.stdin.take().expect("it was asked for");
        let from_guest = qemu.stdout.take().expect("it was asked for");
        let console = Console::new(to_guest, from_guest);
        let mut guest = Self { qemu, console, dir };
        if let Err(silence) = guest.console.ready_within(BOOT_LIMIT) {
            panic!("the guest did not boot: {silence:?} after {:?}", start.elapsed());
        }
        println!("the guest is up after {:.1} s", start.elapsed().as_secs_f64());
        guest.succeed("test -b /dev/vda");
        guest
    }

    /// Plugs the vhost-user-blk server at `socket` in as the disk, after [`Guest::unplug`], and
    /// forgets files and kernel messages of the time before.
    ///
    /// # Panics
    ///
    /// When QEMU refuses, or the guest does not find the disk.
    pub fn plug(&mut self, socket: &Path, reconnect: Reconnect) {
        self.succeed("rm -rf /tmp/* && dmesg -c >/dev/null");
        let addr = json!({ "type": "unix", "data": { "path": socket } });
        let mut data = json!({ "addr": addr, "server": false });
        if reconnect == Reconnect::EverySecond {
            let (key, value) = reconnect_setting();
            data[key] = json!(value);
        }
        let backend = json!({ "type": "socket", "data": data });
        let mut monitor = self.monitor();
        monitor.order("chardev-add", &json!({ "id": "disk", "backend": backend }));
        self.add_device(&mut monitor);
    }

    /// Unplugs the disk, with the guest's help, and closes the connection to its server.
    ///
    /// # Panics
    ///
    /// When QEMU refuses, or the guest does not let go of the disk.
    pub fn unplug(&mut self) {
        let mut monitor = self.monitor();
        self.delete_device(&mut monitor);
        monitor.order("chardev-remove", &json!({ "id": "disk" }));
    }

    /// Unplugs the disk and plugs a new one in at the same connection.
    ///
    /// # Panics
    ///
    /// As [`Guest::plug`] and [`Guest::unplug`].
    pub fn replug(&mut self) {
        let mut monitor = self.monitor();
        self.delete_device(&mut monitor);
        self.add_device(&mut monitor);
    }

    fn monitor(&self) -> Monitor {
        Monitor::connect(&self.dir.path().join("monitor"))
    }

    fn delete_device(&mut self, monitor: &mut Monitor) {
        monitor.order("device_del", &json!({ "id": "disk0" }));
        monitor.until_deleted("disk0");
        self.succeed("test ! -e /dev/vda");
    }

    fn add_device(&mut self, monitor: &mut Monitor) {
        let device = json!({
            "driver": "vhost-user-blk-pci", "id": "disk0", "chardev": "disk", "num-queues": 2,
            "bus": SLOT,
        });
        monitor.order("device_add", &device);
        self.succeed("until test -b /dev/vda; do sleep 0.1; done");
    }

    /// Runs a line of shell, which must succeed within two minutes, and returns its output.
    ///
    /// # Panics
    ///
    /// When it fails or takes longer, with its output.
    pub fn succeed(&mut self, command: &str) -> String {
        self.succeed_within(command, COMMAND_LIMIT)
    }

    /// `succeed` with another limit.
    ///
    /// # Panics
    ///
    /// As `succeed`.
    pub fn succeed_within(&mut self, command: &str, limit: Duration) -> String {
        let (status, output) = self.run_within(command, limit);
        assert_eq!(status, 0, "in the guest, {command}\n{output}");
        output
    }

    /// Runs a line of shell and returns its status and its output.
    ///
    /// # Panics
    ///
    /// When it takes longer than `limit`, or the guest ends.
    pub fn run_within(&mut self, command: &str, limit: Duration) -> (i32, String) {
        let answer = self.console.run(command, limit);
        answer.unwrap_or_else(|silence| {
            panic!("in the guest, {command}\n{silence:?}, limit {limit:?}")
        })
    }

    /// A number that a file of the guest holds, such as one below /sys.
    ///
    /// # Panics
    ///
    /// When it holds something else.
    pub fn number(&mut self, file: &str) -> u64 {
        let text = self.succeed(&format!("cat {file}"));
        text.trim()
            .parse()
            .unwrap_or_else(|error| panic!("in the guest, {file}: {text:?}: {error}"))
    }

    /// Starts one line of shell, to be ended by [`Guest::finish`] with the same name.
    pub fn start(&mut self, name: &str, command: &str) {
        // An earlier command may have had this name.
        self.succeed(&format!("rm -f /tmp/{name}.status"));
        let line = format!("(({command}) >/tmp/{name}.log 2>&1; echo $? >/tmp/{name}.status) &");
        self.succeed(&line);
    }

    /// Does the command started as `name` still run?
    pub fn is_running(&mut self, name: &str) -> bool {
        self.run_within(&format!("test -s /tmp/{name}.status"), COMMAND_LIMIT).0 != 0
    }

    /// Waits for the command started as `name`, which must succeed, and returns its output.
    ///
    /// # Panics
    ///
    /// When it fails, or is not done within `limit`.
    pub fn finish(&mut self, name: &str, limit: Duration) -> String {
        let end = Instant::now() + limit;
        while self.is_running(name) {
            if Instant::now() > end {
                let said = self.succeed(&format!("cat /tmp/{name}.log; ps; dmesg | tail -30"));
                panic!("in the guest, {name} was still running after {limit:?}:\n{said}");
            }
            thread::sleep(Duration::from_millis(100));
        }
        let said = self.succeed(&format!("cat /tmp/{name}.log"));
        let status = self.number(&format!("/tmp/{name}.status"));
        assert_eq!(status, 0, "in the guest, {name}:\n{said}");
        said
    }

    /// Fails if the guest's kernel has complained of its disk, of a task that hangs, or of itself.
    ///
    /// # Panics
    ///
    /// When it has.
    pub fn assert_no_complaints(&mut self) {
        let log = self.succeed("dmesg");
        let signs = ["I/O error", "blocked for more", "EXT4-fs error", "BUG:", "WARNING:", "Oops"];
        let bad: Vec<_> =
            log.lines().filter(|line| signs.iter().any(|s| line.contains(s))).collect();
        assert!(bad.is_empty(), "the guest's kernel complains:\n{}", bad.join("\n"));
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Failing here would hide the test's own failure, and there is nothing more to do.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if thread::panicking() {
            let said = |name| fs::read(self.dir.path().join(name)).unwrap_or_default();
            println!("--- guest's shell\n{}", self.console.transcript());
            println!("--- guest's kernel\n{}", String::from_utf8_lossy(&said("kernel.log")));
            println!("--- QEMU\n{}", String::from_utf8_lossy(&said("qemu.log")));
        }
    }
}

fn spawn(image: &Image, socket: &Path, dir: &Path) -> Child {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]);
    command.args(["-object", MEMORY, "-machine", "q35,memory-backend=memory"]);
    command.arg("-kernel").arg(image.kernel()).arg("-initrd").arg(image.initrd());
    // On a busy host the emulated timer ticks too late for the kernel's check of it.
    command.args(["-append", "console=ttyS0 loglevel=5 panic=-1 no_timer_check"]);
    command.args(["-serial", "file:kernel.log", "-serial", "stdio"]);
    command.args(["-qmp", "unix:monitor,server=on,wait=off"]);
    command.args(["-device", &format!("pcie-root-port,id={SLOT}")]);
    let (key, value) = reconnect_setting();
    let chardev = format!("socket,id=disk,path={},{key}={value}", socket.display());
    command.arg("-chardev").arg(chardev);
    let disk = format!("vhost-user-blk-pci,id=disk0,chardev=disk,num-queues=2,bus={SLOT}");
    command.args(["-device", &disk]);
    command.current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(create(&dir.join("qemu.log")));
    command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

/// QEMU's setting to reconnect every second; its name and unit changed with 9.2.
fn reconnect_setting() -> (&'static str, u32) {
    let output = run(Command::new("qemu-system-x86_64").arg("--version"));
    match version(&String::from_utf8_lossy(&output.stdout)) >= Some((9, 2)) {
        true => ("reconnect-ms", 1000),
        false => ("reconnect", 1),
    }
}

/// The version number in the first line of `--version`.
fn version(text: &str) -> Option<(u32, u32)> {
    let (_, rest) = text.split_once("version ")?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn the_version_of_qemu_is_read() {
        let text = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright";
        assert_eq!(version(text), Some((10, 0)));
        assert!(version("QEMU emulator version 7.2.22 (Debian 1:7.2)") < Some((9, 2)));
        assert_eq!(version("QEMU"), None);
    }
}
