//! Compares servers of many small disks: how long until they are ready, and what a disk costs.
//!
//! Makes a directory of sparse files, then has millrace, qemu-storage-daemon and nbdkit serve it in
//! turn, each as an operator would: an export for each file where files are configured, and the
//! directory itself where a server opens files when they are asked for. Ready is when a client has
//! read the first sector of the last disk. Of millrace it prints, too, how long `stat` takes, and
//! how long it is from adding a disk to its first byte. Loads stop by themselves.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::NOTHING;

const USAGE: &str = "\
usage: disks_compare [--millrace PROGRAM] [--disks 1000,10000] [--files 100000] [--dir DIR]

  --millrace millrace   the program to measure
  --disks 1000,10000    configured disks, each a file of 1 MiB
  --files 100000        files of a directory that is served as a whole
  --dir DIR             where files and sockets are made [default: a new one in /tmp]";

/// Longest wait for a server.
const READY_TIMEOUT: Duration = Duration::from_secs(300);
/// Time between two tries to connect.
const RETRY: Duration = Duration::from_millis(2);
/// Disks that are added while millrace runs.
const ADDED: usize = 20;

type Failure = Box<dyn std::error::Error>;

struct Settings {
    millrace: PathBuf,
    disks: Vec<usize>,
    files: usize,
    dir: PathBuf,
}

fn settings() -> Result<Settings, Failure> {
    let mut found = Settings {
        millrace: "millrace".into(),
        disks: vec![1000, 10_000],
        files: 100_000,
        dir: std::env::temp_dir().join(format!("disks_compare.{}", std::process::id())),
    };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value\n{USAGE}"))?;
        match flag.as_str() {
            "--millrace" => found.millrace = fs::canonicalize(&value)?,
            "--disks" => {
                found.disks = value.split(',').map(str::parse).collect::<Result<_, _>>()?
            }
            "--files" => found.files = value.parse()?,
            "--dir" => found.dir = value.into(),
            _ => return Err(format!("unknown option {flag}\n{USAGE}").into()),
        }
    }
    Ok(found)
}

fn main() -> ExitCode {
    match settings().and_then(|settings| run(&settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("disks_compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<(), Failure> {
    fs::create_dir_all(&settings.dir)?;
    let measured = measure(settings);
    fs::remove_dir_all(&settings.dir)?;
    measured
}

fn measure(settings: &Settings) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["disks", "server", "ready ms", "first byte ms", "RSS MiB", "KiB per disk"]);
    let mut notes = Vec::new();
    for count in &settings.disks {
        let images = make_files(&settings.dir.join(format!("images-{count}")), *count)?;
        for server in [Server::millrace(settings, &images, *count)?, Server::qemu(&images, *count)]
        {
            let is_ours = server.name == "millrace";
            let running = server.start(*count, &mut table)?;
            if is_ours {
                notes.extend(changes(settings, &running, *count)?);
            }
        }
    }
    let files = settings.files;
    let images = make_files(&settings.dir.join("images"), files)?;
    let directory = [Server::directory(settings, &images)?, Server::nbdkit(&images)];
    for server in directory {
        server.start(files, &mut table)?;
    }
    println!("{table}");
    notes.iter().for_each(|note| println!("{note}"));
    Ok(())
}

fn file_name(number: usize) -> String {
    format!("disk-{number:06}")
}

/// A directory of so many sparse files.
fn make_files(dir: &Path, count: usize) -> Result<PathBuf, Failure> {
    fs::create_dir_all(dir)?;
    for number in 0..count {
        File::create(dir.join(file_name(number)))?.set_len(1 << 20)?;
    }
    Ok(dir.to_owned())
}

/// A server and its command.
struct Server {
    name: &'static str,
    command: Command,
    socket: PathBuf,
}

struct Running {
    child: Child,
    socket: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

impl Server {
    fn new(name: &'static str, program: &Path, images: &Path) -> Server {
        let mut command = Command::new(program);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Server { name, command, socket: images.with_extension(format!("{name}.sock")) }
    }

    fn served(
        name: &'static str,
        settings: &Settings,
        images: &Path,
        text: &str,
    ) -> Result<Server, Failure> {
        let mut server = Server::new(name, &settings.millrace, images);
        let config = images.with_extension(format!("{name}.toml"));
        let socket = format!("[server]\ncontrol = \"unix:{}.control\"\n", server.socket.display());
        fs::write(&config, socket + &text.replace("SOCKET", &server.socket.display().to_string()))?;
        server.command.arg("serve").arg(config);
        Ok(server)
    }

    fn millrace(settings: &Settings, images: &Path, count: usize) -> Result<Server, Failure> {
        let text: String = (0..count).map(|number| sections(&file_name(number), images)).collect();
        Server::served("millrace", settings, images, &text)
    }

    fn directory(settings: &Settings, images: &Path) -> Result<Server, Failure> {
        let images_text = images.display();
        let text = format!("[[export]]\ndirectory = \"{images_text}\"\nnbd = \"unix:SOCKET\"\n");
        Server::served("millrace directory", settings, images, &text)
    }

    fn qemu(images: &Path, count: usize) -> Server {
        let mut server =
            Server::new("qemu-storage-daemon", Path::new("qemu-storage-daemon"), images);
        let address =
            format!("addr.type=unix,addr.path={},max-connections=0", server.socket.display());
        server.command.arg("--nbd-server").arg(address);
        // Short names: the arguments of a program have 2 MiB.
        server.command.current_dir(images);
        for name in (0..count).map(file_name) {
            let node = format!("driver=file,node-name={name},filename={name}");
            let export = format!("type=nbd,id={name},node-name={name},name={name}");
            server.command.args(["--blockdev", &node, "--export", &export]);
        }
        server
    }

    fn nbdkit(images: &Path) -> Server {
        let mut server = Server::new("nbdkit", Path::new("nbdkit"), images);
        let directory = format!("dir={}", images.display());
        server.command.arg("-f").arg("-U").arg(&server.socket).arg("file").arg(directory);
        server
    }

    /// Starts it, adds its row to the table, and leaves it running.
    fn start(mut self, count: usize, table: &mut Table) -> Result<Running, Failure> {
        let start = Instant::now();
        let child = self.command.spawn().map_err(|error| format!("{}: {error}", self.name))?;
        let mut running = Running { child, socket: self.socket };
        let last = file_name(count - 1);
        while first_sector(&running.socket, &last).is_err() {
            if running.child.try_wait()?.is_some() || start.elapsed() > READY_TIMEOUT {
                return Err(format!("{} with {count} disks is not ready", self.name).into());
            }
            std::thread::sleep(RETRY);
        }
        let ready = start.elapsed();
        let resident = resident_kib(running.child.id())?;
        let first_byte = first_byte(&running.socket, &file_name(count / 2))
            .map_err(|error| format!("{} with {count} disks: {error}", self.name))?;
        table.add_row([
            count.to_string(),
            self.name.to_owned(),
            format!("{:.0}", ready.as_secs_f64() * 1e3),
            format!("{:.1}", first_byte.as_secs_f64() * 1e3),
            format!("{:.1}", resident as f64 / 1024.0),
            format!("{:.2}", resident as f64 / count as f64),
        ]);
        Ok(running)
    }
}

/// Time from connecting to the first byte, of the first try that gives one: qemu-storage-daemon
/// closes connections that come right behind refused ones.
fn first_byte(socket: &Path, export: &str) -> Result<Duration, Failure> {
    let mut last = Err("no try".into());
    for _ in 0..10 {
        let start = Instant::now();
        last = first_sector(socket, export).map(|()| start.elapsed());
        if last.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    last
}

/// Drive, volume and export of a file.
fn sections(name: &str, images: &Path) -> String {
    let file = images.join(name);
    format!(
        "[[drive]]\nname = \"{name}\"\nspec = \"file:path={}\"\n[[volume]]\nname = \"{name}\"\n\
         drives = [\"{name}\"]\n[[export]]\nvolume = \"{name}\"\nnbd = \"unix:SOCKET\"\n",
        file.display()
    )
}

/// What a running millrace is asked, and how long that takes.
fn changes(settings: &Settings, running: &Running, count: usize) -> Result<Vec<String>, Failure> {
    let control = format!("unix:{}.control", running.socket.display());
    let ask = |args: &[&str]| -> Result<(Duration, usize), Failure> {
        let start = Instant::now();
        let mut command = Command::new(&settings.millrace);
        let output = command.args(args).args(["--connect", &control]).output()?;
        match output.status.success() {
            true => Ok((start.elapsed(), output.stdout.len())),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
        }
    };
    let (stat, bytes) = ask(&["stat"])?;
    let mut times = Vec::new();
    for number in 0..ADDED {
        let name = format!("added-{number}");
        let file = settings.dir.join(&name);
        File::create(&file)?.set_len(1 << 20)?;
        let start = Instant::now();
        let spec = format!("spec=file:path={}", file.display());
        ask(&["ctl", "add", "drive", &name, &spec])?;
        ask(&["ctl", "add", "volume", &name, &format!("drives={name}")])?;
        let nbd = format!("nbd=unix:{}", running.socket.display());
        let last = Instant::now();
        ask(&["ctl", "add", "export", &name, &format!("volume={name}"), &nbd])?;
        first_sector(&running.socket, &name)?;
        times.push((last.elapsed(), start.elapsed()));
    }
    times.sort_unstable();
    let (export, all) = times[times.len() / 2];
    Ok(vec![
        format!("{count} disks: `stat` takes {:.0} ms and prints {bytes} bytes", ms(stat)),
        format!(
            "{count} disks: from `ctl add export` to the first byte {:.1} ms (median of {ADDED}); \
             with its drive and volume, three commands, {:.1} ms",
            ms(export),
            ms(all)
        ),
    ])
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Reads the first sector of an export over a connection of its own.
fn first_sector(socket: &Path, export: &str) -> Result<(), Failure> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(READY_TIMEOUT))?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(b"IHAVEOPT\0\0\0\x01");
    bytes.extend_from_slice(&(export.len() as u32).to_be_bytes());
    bytes.extend_from_slice(export.as_bytes());
    stream.write_all(&bytes)?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    // A read of 512 bytes, and a goodbye.
    let mut request = b"\x25\x60\x95\x13\0\0\0\0cookie77\0\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
    request.extend_from_slice(b"\x25\x60\x95\x13\0\0\0\x02cookie78\0\0\0\0\0\0\0\0\0\0\0\0");
    stream.write_all(&request)?;
    let mut reply = [0; 16 + 512];
    stream.read_exact(&mut reply)?;
    match reply[4..8] {
        [0, 0, 0, 0] => Ok(()),
        _ => Err(format!("{export}: its first sector cannot be read").into()),
    }
}

fn resident_kib(pid: u32) -> Result<u64, Failure> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line.and_then(|line| line.split_whitespace().next()).ok_or("no VmRSS")?.parse()?)
}
