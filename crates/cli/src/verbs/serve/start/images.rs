//! `millrace serve disk.img`: serves files and devices without a configuration.
//!
//! This module generates the equivalent configuration, so that all starts take the same path, and
//! `--print-config` prints a configuration to start from. The files must exist: none is created.

use std::collections::HashSet;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use millrace::Listen;
use millrace_drives::Spec;

use crate::config::words::{self, LayoutWord};

const LOOK_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Files served without a configuration")]
pub struct ImageArgs {
    /// Layout of several files in one volume: linear (one after the other) or stripe (chunks of 64
    /// KiB in turn) [default: linear; for drives of a configuration it is stripe]
    #[arg(long, value_name = "LAYOUT", hide_possible_values = true)]
    #[arg(value_parser = words::LayoutParser)]
    pub layout: Option<LayoutWord>,
    /// Serve read-only; files need not be writable
    #[arg(long)]
    pub read_only: bool,
    /// Address to serve NBD at: unix:PATH, tcp:ADDRESS:PORT, or tcp:PORT on loopback; may be
    /// repeated [default: unix:NAME.sock]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub nbd: Vec<String>,
    /// Socket for a virtual machine, which gets the volume as a vhost-user-blk disk
    #[arg(long, value_name = "PATH", value_parser = socket)]
    pub vhost_user: Option<String>,
    /// Certificate for NBD, which is then served over TLS only: a PEM file that contains the
    /// certificate and after it the certificates of intermediate CAs
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<String>,
    /// Private key of the certificate in --tls-certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<String>,
    /// CA certificates, a PEM file: admit only clients whose certificates they have issued
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_client_ca: Option<String>,
    /// Name of the export [default: name of the file without its extension; vol0 for several files]
    #[arg(long, value_name = "NAME", value_parser = export_name)]
    pub name: Option<String>,
}

impl ImageArgs {
    /// Returns the first given flag that applies to files only, not to a configuration.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            ("--layout", self.layout.is_some()),
            ("--read-only", self.read_only),
            ("--nbd", !self.nbd.is_empty()),
            ("--vhost-user", self.vhost_user.is_some()),
            ("--tls-certificate", self.tls_certificate.is_some()),
            ("--name", self.name.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }
}

fn address(text: &str) -> Result<String, String> {
    words::address(text, Path::new("")).map(|_| text.to_owned())
}

fn export_name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(char::is_control) {
        true => Err("write a name such as \"disk\", without control characters".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn socket(text: &str) -> Result<String, String> {
    let text = if text.starts_with("unix:") { text.to_owned() } else { format!("unix:{text}") };
    address(&text)
}

struct ImageDrive {
    name: String,
    /// Text of the `[[drive]]` section after its `name` line.
    what: String,
}

pub fn configuration(files: &[PathBuf], args: &ImageArgs) -> anyhow::Result<String> {
    refuse_an_address_twice(args)?;
    let images = files.iter().map(|file| image(file, args));
    let mut images = images.collect::<anyhow::Result<Vec<ImageDrive>>>()?;
    let names: HashSet<&str> = images.iter().map(|image| image.name.as_str()).collect();
    if names.len() < images.len() {
        images.iter_mut().zip(0..).for_each(|(image, number)| image.name = format!("d{number}"));
    }
    let name = match (&args.name, images.as_slice()) {
        (Some(name), _) => name.clone(),
        (None, [image]) => image.name.clone(),
        (None, _) => "vol0".to_owned(),
    };
    Ok(text(&images, &name, args))
}

fn refuse_an_address_twice(args: &ImageArgs) -> anyhow::Result<()> {
    let place = |text: &str| words::address(text, Path::new("")).ok();
    for (index, address) in args.nbd.iter().enumerate() {
        if args.nbd[..index].iter().any(|other| place(other) == place(address)) {
            bail!("--nbd {address}: this address is given twice; remove one of them");
        }
        if args.vhost_user.as_ref().is_some_and(|socket| place(socket) == place(address)) {
            bail!(
                "--vhost-user {address}: this is also the socket of --nbd; give each a socket of \
                 its own"
            );
        }
    }
    Ok(())
}

fn text(images: &[ImageDrive], name: &str, args: &ImageArgs) -> String {
    let mut text = String::new();
    for image in images {
        let _ = write!(text, "[[drive]]\nname = {}\n{}\n", quoted(&image.name), image.what);
    }
    let names: Vec<String> = images.iter().map(|image| quoted(&image.name)).collect();
    let layout = match args.layout {
        Some(LayoutWord::Stripe) => "stripe",
        Some(LayoutWord::Linear) | None => "linear",
    };
    let _ = writeln!(text, "[[volume]]\nname = {}\nlayout = \"{layout}\"", quoted(name));
    let _ = writeln!(text, "drives = [{}]\n", names.join(", "));
    let _ = writeln!(text, "[[export]]\nvolume = {}", quoted(name));
    let nbd = match (args.nbd.as_slice(), &args.vhost_user) {
        ([], Some(_)) => Vec::new(),
        ([], None) => vec![format!("unix:{}.sock", as_file_name(name))],
        (given, _) => given.to_vec(),
    };
    if !nbd.is_empty() {
        let list: Vec<String> = nbd.iter().map(|address| quoted(address)).collect();
        let _ = writeln!(text, "nbd = [{}]", list.join(", "));
    }
    if let Some(socket) = &args.vhost_user {
        let _ = writeln!(text, "vhost-user-blk = {}", quoted(socket));
    }
    if args.read_only {
        text.push_str("read-only = true\n");
    }
    let is_unix =
        |text: &String| matches!(words::address(text, Path::new("")), Ok(Listen::Unix(_)));
    let mut server = String::new();
    if args.vhost_user.is_none() && !nbd.iter().any(is_unix) {
        // By default, the path of the control socket is the path of the clients' Unix socket plus
        // `.control`. If clients have no Unix socket, the generated configuration must contain the
        // path of the control socket.
        let control = quoted(&format!("unix:{}.control", as_file_name(name)));
        let _ = writeln!(server, "control = {control}");
    }
    server.push_str(&tls(args));
    if !server.is_empty() {
        let _ = write!(text, "\n[server]\n{server}");
    }
    text
}

fn tls(args: &ImageArgs) -> String {
    let (Some(certificate), Some(key)) = (&args.tls_certificate, &args.tls_key) else {
        return String::new();
    };
    let mut keys = format!("certificate = {}, key = {}", quoted(certificate), quoted(key));
    if let Some(ca) = &args.tls_client_ca {
        let _ = write!(keys, ", client-ca = {}", quoted(ca));
    }
    format!("tls = {{ {keys} }}\n")
}

fn image(file: &Path, args: &ImageArgs) -> anyhow::Result<ImageDrive> {
    let shown = file.display();
    let Some(path) = file.to_str() else {
        bail!("{shown}: the name is not UTF-8; rename the file, or serve a link to it");
    };
    let meta = match std::fs::metadata(file) {
        Ok(meta) => meta,
        // No file has this name. Unless the text looks like a drive spec or an NBD URL, the file is
        // reported as missing.
        Err(error) if !is_of_driver(path) && !is_nbd_url(path) => {
            return Err(missing(file, &error));
        }
        Err(_) => match path.parse::<Spec>() {
            Ok(spec) => return Ok(drive(spec, args)),
            Err(error) => bail!("{path}: {error}"),
        },
    };
    if meta.is_file() && meta.len() <= LOOK_BYTES_MAX && is_configuration(file) {
        bail!(
            "{shown}: this looks like a configuration; to serve its volumes, write --config {shown}"
        );
    }
    if meta.is_file() && meta.len() < 512 {
        let has = match meta.len() {
            0 => "the file is empty".to_owned(),
            bytes => format!("{bytes} bytes are too few"),
        };
        bail!("{shown}: {has}; {}", to_make(file));
    }
    let mut what = format!("driver = \"file\"\npath = {}\n", quoted(path));
    if args.read_only {
        what.push_str("read-only = true\n");
    }
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    let stem = stem.filter(|stem| !stem.contains(char::is_control)).unwrap_or("disk");
    Ok(ImageDrive { name: stem.to_owned(), what })
}

/// Returns true for a text that begins with a driver, as in `ram:size=1g`, or with a driver and a
/// controller, as in `ram@hba:size=1g`.
fn is_of_driver(text: &str) -> bool {
    let driver = text.split_once(':').map(|(driver, _)| driver.split('@').next().unwrap_or(driver));
    let is_known = driver.is_some_and(|driver| millrace_drives::known_keys(driver).is_some());
    is_known && !is_nbd_url(text)
}

fn is_nbd_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    matches!(scheme, Some("nbd" | "nbds" | "nbd+unix" | "nbds+unix"))
}

/// Returns the drive that a spec describes. The drive of a Ceph image gets the image's name, any
/// other drive the name of its driver.
fn drive(mut spec: Spec, args: &ImageArgs) -> ImageDrive {
    if args.read_only {
        spec.set_default("read-only", "on");
    }
    let image = spec.get("image").and_then(|image| image.split(['/', '@']).next_back());
    let name = image.unwrap_or(&spec.driver).to_owned();
    ImageDrive { name, what: format!("spec = {}\n", quoted(&spec.to_string())) }
}

fn missing(file: &Path, error: &std::io::Error) -> anyhow::Error {
    let shown = file.display();
    if is_url(file) {
        return anyhow!("{shown}: {URL_ADVICE}");
    }
    if error.kind() != ErrorKind::NotFound {
        return anyhow!("{shown}: {error}");
    }
    let text = shown.to_string();
    let of_driver = text.split_once(':').and_then(|(word, keys)| {
        if let Some(driver) = millrace_drives::nearest(word, millrace_drives::drivers()) {
            return Some(format!("did you mean the driver `{driver}`, as in {driver}:key=value?"));
        }
        let known = millrace_drives::drivers().collect::<Vec<_>>().join(", ");
        let is_spec = keys.contains('=') && !word.contains('/');
        is_spec.then(|| format!("if `{word}` is meant as a driver, choose one of {known}"))
    });
    let advice = of_driver.unwrap_or_else(|| to_make(file));
    anyhow!("{shown}: there is no such file or device; {advice}")
}

fn is_url(file: &Path) -> bool {
    let scheme = file.to_str().and_then(|text| text.split_once("://")).map(|(scheme, _)| scheme);
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.chars().all(is_letter))
}

const URL_ADVICE: &str = "no driver opens this kind of URL; name a file, a block device, \
                          nbd://HOST/NAME for the export of an NBD server (nbdkit makes one of \
                          https, S3 and others) or rbd:POOL/IMAGE for a Ceph image";

/// Returns advice on how to create a disk at a path where nothing exists. Does not advise
/// `truncate` below /dev, where it would create a file in memory that is named like a disk.
fn to_make(file: &Path) -> String {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let (shown, is_in) = (file.display(), std::fs::canonicalize(folder));
    match is_in {
        Err(_) => format!("its directory {} does not exist either", folder.display()),
        Ok(is_in) if is_in.starts_with("/dev") && !is_in.starts_with("/dev/shm") => {
            "`lsblk` lists the block devices of this machine".to_owned()
        }
        Ok(_) => format!(
            "`truncate -s 10G {shown}` makes a disk of 10 GiB, and a configuration has a name that \
             ends with .toml"
        ),
    }
}

fn is_configuration(file: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(file) else { return false };
    let sections = ["[[drive]]", "[[volume]]", "[[export]]"];
    text.lines().any(|line| sections.contains(&line.trim()))
}

fn as_file_name(name: &str) -> String {
    name.replace('/', "_")
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, ServePlan};
    use millrace_block::Layout;

    /// The configuration of files of these names in a directory.
    fn plan(names: &[&str], args: &ImageArgs) -> (ServePlan, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = names.iter().map(|name| dir.path().join(name)).collect();
        files.iter().for_each(|file| std::fs::write(file, [0; 512]).unwrap());
        let text = configuration(&files, args).unwrap();
        let plan = config::load("", &text, Path::new(""));
        (plan.unwrap_or_else(|problems| panic!("{problems}\n{text}")), dir)
    }

    #[test]
    fn one_file_is_one_linear_export_on_a_socket_of_its_name() {
        let (plan, dir) = plan(&["disk.img"], &ImageArgs::default());
        assert_eq!(
            (plan.config.volumes[0].layout, plan.config.exports[0].name.as_str()),
            (Layout::Linear, "disk")
        );
        assert_eq!(plan.listeners[0].address, Listen::Unix("disk.sock".into()));
        let path = dir.path().join("disk.img");
        assert_eq!(plan.config.volumes[0].drives[0].spec.get("path"), path.to_str());
        assert!(plan.warnings.is_empty() && !plan.config.exports[0].read_only);
    }

    #[test]
    fn odd_names_are_quoted_and_equal_ones_numbered() {
        let (odd, _dir) = plan(&["a \"b\\\u{7f}\u{fc}.x.img"], &ImageArgs::default());
        assert_eq!(odd.config.exports[0].name, "disk");
        let (twins, _dir) = plan(&["a.img", "a.raw"], &ImageArgs::default());
        let names: Vec<&str> = twins.config.drives().map(|drive| drive.name.as_str()).collect();
        assert_eq!((names, twins.config.exports[0].name.as_str()), (vec!["d0", "d1"], "vol0"));
        assert_eq!(twins.config.volumes[0].layout, Layout::Linear);
    }

    #[test]
    fn flags_reach_the_plan() {
        let args = ImageArgs {
            layout: Some(LayoutWord::Stripe),
            read_only: true,
            nbd: vec!["tcp:0".to_owned()],
            vhost_user: Some("unix:vm".to_owned()),
            tls_certificate: Some("c.pem".to_owned()),
            tls_key: Some("k.pem".to_owned()),
            tls_client_ca: Some("ca.pem".to_owned()),
            name: Some("a/b".to_owned()),
        };
        let (plan, _dir) = plan(&["a", "b"], &args);
        assert!(matches!(plan.config.volumes[0].layout, Layout::Stripe { chunk_sectors: 128 }));
        assert!(plan.config.exports[0].read_only && plan.config.exports[0].guests.is_some());
        assert_eq!(plan.config.volumes[0].drives[1].spec.get("read-only"), Some("on"));
        assert_eq!((plan.listeners.len(), plan.config.exports[0].name.as_str()), (1, "a/b"));
        let tls = plan.listeners[0].tls.as_ref().unwrap();
        assert!(tls.required && tls.files.client_ca.as_ref().unwrap().ends_with("ca.pem"));
        assert!(tls.files.identity.key.ends_with("k.pem"));
        let all = ["--layout", "--read-only", "--nbd", "--vhost-user", "--name"];
        assert_eq!((args.given(), ImageArgs::default().given()), (Some(all[0]), None));
    }

    #[test]
    fn a_spec_is_a_drive_and_what_is_not_there_is_said_to_be() {
        let one = |name: &str| configuration(&[name.into()], &ImageArgs::default());
        assert!(one("ram:size=1m").unwrap().contains("spec = \"ram:size=1m\""));
        let image = one("rbd:pool/disk").unwrap();
        assert!(image.contains("name = \"disk\"\nspec = \"rbd:pool/disk\""), "{image}");
        let read_only = ImageArgs { read_only: true, ..ImageArgs::default() };
        let image = configuration(&["rbd:pool/disk".into()], &read_only).unwrap();
        assert!(image.contains("spec = \"rbd:pool/disk,read-only=on\""), "{image}");
        let error = one("rbd:pool/disk,dept=1").unwrap_err().to_string();
        assert!(error.contains("no key `dept` (did you mean `depth`?)"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.conf");
        std::fs::write(&file, " [[volume]]\nname = \"v\"\n").unwrap();
        let error = one(file.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("--config "), "{error}");
    }

    #[test]
    fn truncate_is_for_files_only_and_urls_are_told_what_drives_are() {
        let one = |name: &str| {
            configuration(&[name.into()], &ImageArgs::default()).unwrap_err().to_string()
        };
        let flie = one("flie:path=a");
        assert!(flie.ends_with("did you mean the driver `file`, as in file:key=value?"), "{flie}");
        let said = "no.img: there is no such file or device; `truncate -s 10G no.img` makes a disk \
                    of 10 GiB, and a configuration has a name that ends with .toml";
        assert_eq!(one("no.img"), said);
        assert!(one("/dev/shm/no.img").contains("`truncate -s 10G /dev/shm/no.img`"));
        let said = "/dev/no-such: there is no such file or device; `lsblk` lists the block devices \
                    of this machine";
        assert_eq!(one("/dev/no-such"), said);
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev", dir.path().join("d")).unwrap();
        let linked = dir.path().join("d/no-such").display().to_string();
        assert!(one(&linked).ends_with("`lsblk` lists the block devices of this machine"));
        let said = "/no-such/x: there is no such file or device; its directory /no-such does not \
                    exist \
                    either";
        assert_eq!(one("/no-such/x"), said);
        for url in ["https://host/disk.img", "s3://bucket/disk"] {
            let said = one(url);
            let refused = format!("{url}: no driver opens this kind of URL; name a file, ");
            assert!(said.starts_with(&refused), "{said}");
            assert!(!said.contains("truncate"), "{said}");
        }
        for url in ["nbd://host/v", "nbds://host/v", "nbd+unix:///v?socket=s"] {
            let text = configuration(&[url.into()], &ImageArgs::default()).unwrap();
            assert!(text.contains(&format!("spec = \"nbd:uri={url}\"")), "{text}");
        }
        let empty = dir.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        let said = one(empty.to_str().unwrap());
        assert!(said.contains("the file is empty; `truncate -s 10G "), "{said}");
    }
}
