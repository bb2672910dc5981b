//! `cargo xtask deb`: a Debian package of the build with profile `dist`.
//!
//! Owns the list of the package's files: the program, the units (not started, since the
//! configuration must be edited first), users, manual pages (manual.rs makes the configuration's
//! page), completions, an initial configuration, the documents, and maintainer scripts. Everything
//! is laid out under `target/deb` and packed by dpkg-deb, so root is not needed. Called by `main`;
//! calls cargo, the program and dpkg-deb.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

mod manual;

/// Files of the repository, and their paths in the package.
const FILES: [(&str, &str); 8] = [
    ("docs/millrace.service", "usr/lib/systemd/system/millrace.service"),
    ("docs/millrace.socket", "usr/lib/systemd/system/millrace.socket"),
    ("docs/millrace.sysusers", "usr/lib/sysusers.d/millrace.conf"),
    (EXAMPLE, CONFIGURATION),
    (EXAMPLE, "usr/share/doc/millrace/examples/millrace.toml"),
    ("docs/grafana.json", "usr/share/doc/millrace/examples/grafana.json"),
    ("README.md", "usr/share/doc/millrace/README.md"),
    ("CHANGELOG.md", "usr/share/doc/millrace/CHANGELOG.md"),
];
/// Initial configuration; the administrator owns it after the installation.
const EXAMPLE: &str = "docs/example.toml";
/// Documents that make up millrace.toml(5).
const REFERENCE: [&str; 2] = ["docs/configuration.md", "docs/test-drives.md"];
const CONFIGURATION: &str = "etc/millrace.toml";
/// Folder of the documents, beside README.md as in the repository, so that its links work.
const DOCUMENTS: &str = "usr/share/doc/millrace/docs";
/// Shells, and the paths in which they look for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/millrace"),
    ("zsh", "usr/share/zsh/vendor-completions/_millrace"),
    ("fish", "usr/share/fish/vendor_completions.d/millrace.fish"),
];
const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: millrace

Files: *
Copyright: The millrace developers
License: Apache-2.0 or MIT
";
/// Script that runs after installation: creates users, then prints the next step. It starts and
/// restarts nothing: the administrator must edit /etc/millrace.toml first, and only clients know
/// when a restart is possible. A daemon whose program was replaced is found by the suffix
/// "(deleted)" that the kernel appends to its path.
const POSTINST: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = configure ]; then
    systemd-sysusers millrace.conf
    install -d -o millrace -g millrace -m 0750 /srv/millrace
    if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
    if [ -z \"$2\" ]; then
        echo \"millrace: edit /etc/millrace.toml, then: systemctl enable --now millrace\"
    fi
    running=
    for exe in /proc/[0-9]*/exe; do
        if [ \"$(readlink \"$exe\" || true)\" = \"/usr/bin/millrace (deleted)\" ]; then
            pid=${exe#/proc/}
            running=\"$running ${pid%/exe}\"
        fi
    done
    if [ -n \"$running\" ]; then
        echo \"millrace: the previous program still serves its clients: process$running\"
        echo \"millrace: to switch when clients can wait: systemctl restart millrace\"
        echo \"millrace: (a daemon outside the unit must be stopped and started by hand)\"
    fi
fi
";
/// Stops the socket first: otherwise a client would start the daemon again.
const PRERM: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now millrace.socket millrace.service || true
fi
";
/// Drives in /srv/millrace are never removed, nor the user that owns them.
const POSTRM: &str = "\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
";

/// Packs `binary`, or builds the program first if it is None; returns true if there is a package.
///
/// # Errors
/// When the program cannot be built, a file is missing, or dpkg-deb fails.
pub fn run(root: &Path, binary: Option<&str>) -> Result<bool> {
    let binary = match binary {
        Some(path) => PathBuf::from(path),
        None => built(root)?,
    };
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("millrace_{version}_{}", architecture.trim());
    let folder = root.join("target/deb").join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder).context("cannot clear the package's folder")?;
    }
    lay_out(root, &folder, &binary)?;
    control(&folder, &binary, architecture.trim(), version)?;
    let package = folder.with_file_name(format!("{name}.deb"));
    let mut pack = Command::new("dpkg-deb");
    output(pack.args(["--root-owner-group", "-Zxz", "--build"]).arg(&folder).arg(&package))?;
    println!("{}", package.display());
    Ok(true)
}

/// Builds the program and returns its path.
fn built(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--profile", "dist", "--package", "millrace-cli"]).current_dir(root);
    if !cargo.status().context("cannot start cargo")?.success() {
        bail!("cargo build failed: see above");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join("dist/millrace"))
}

/// Copies all files of the package into `folder`.
fn lay_out(root: &Path, folder: &Path, binary: &Path) -> Result<()> {
    let program = folder.join("usr/bin/millrace");
    copy(binary, &program, 0o755)?;
    output(Command::new("strip").arg("--strip-unneeded").arg(&program))?;
    for (from, to) in FILES {
        copy(&root.join(from), &folder.join(to), 0o644)?;
    }
    for file in documents(root)? {
        let name = file.file_name().context("a document's name")?;
        copy(&file, &folder.join(DOCUMENTS).join(name), 0o644)?;
    }
    write(&folder.join("usr/share/doc/millrace/copyright"), COPYRIGHT, 0o644)?;
    for (shell, to) in COMPLETIONS {
        let script = output(Command::new(&program).args(["completions", shell]))?;
        write(&folder.join(to), &script, 0o644)?;
    }
    let pages = folder.join("usr/share/man/man1");
    output(Command::new(&program).arg("man").arg(&pages))?;
    let mut reference = String::new();
    for name in REFERENCE {
        reference.push_str(&fs::read_to_string(root.join(name)).context(name)?);
    }
    let page = manual::ManualPage {
        name: "millrace.toml",
        section: 5,
        about: "configuration of millrace serve",
        version: env!("CARGO_PKG_VERSION"),
    };
    let of_file = folder.join("usr/share/man/man5");
    write(&of_file.join("millrace.toml.5"), manual::render(&page, &reference), 0o644)?;
    for page in [pages, of_file].iter().flat_map(fs::read_dir).flatten() {
        output(Command::new("gzip").args(["-9", "-n"]).arg(page?.path()))?;
    }
    Ok(())
}

/// Returns the paths of the user documents in the repository.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut list = Vec::new();
    for entry in fs::read_dir(root.join("docs")).context("docs")? {
        list.push(entry?.path());
    }
    list.retain(|file| file.extension().is_some_and(|end| end == "md"));
    list.sort();
    Ok(list)
}

/// Writes the control files of dpkg, and the maintainer scripts.
fn control(folder: &Path, binary: &Path, architecture: &str, version: &str) -> Result<()> {
    let libc = newest_glibc(&fs::read(binary).context("cannot read the program")?);
    let kib = size_bytes(folder)?.div_ceil(1024);
    let text = format!(
        "Package: millrace\nVersion: {version}\nArchitecture: {architecture}\n\
         Maintainer: The millrace developers <millrace@localhost>\nInstalled-Size: {kib}\n\
         Depends: libc6 (>= {libc}), libgcc-s1, \
         systemd | systemd-standalone-sysusers | systemd-sysusers\n\
         Suggests: qemu-system-x86, nbd-client, fio\nSection: admin\nPriority: optional\n\
         Description: multi-queue block layer in user space\n \
         Serves files, block devices and memory, alone or as volumes, over NBD and as disks of\n \
         virtual machines (vhost-user-blk), without a kernel module; measures them in fio's words\n \
         and records their I/O in blktrace's format.\n"
    );
    write(&folder.join("DEBIAN/control"), &text, 0o644)?;
    write(&folder.join("DEBIAN/conffiles"), format!("/{CONFIGURATION}\n"), 0o644)?;
    for (name, script) in [("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)] {
        write(&folder.join("DEBIAN").join(name), script, 0o755)?;
    }
    Ok(())
}

/// Returns the newest glibc version that a program needs, from the version names of its symbols.
fn newest_glibc(program: &[u8]) -> String {
    let mut newest = (2, 17);
    for part in String::from_utf8_lossy(program).split("GLIBC_2.").skip(1) {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        newest = newest.max((2, digits.parse().unwrap_or(0)));
    }
    format!("{}.{}", newest.0, newest.1)
}

/// Returns the total size of the files below a folder.
fn size_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size_bytes(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("{}: cannot read", from.display()))?;
    write(to, bytes, mode)
}

fn write(to: &Path, bytes: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    let folder = to.parent().context("a path without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("{}: cannot make it", folder.display()))?;
    fs::write(to, bytes).with_context(|| format!("{}: cannot write", to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Runs a command that must succeed, and returns its standard output.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name}: cannot start; install it"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_glibc_counts() {
        assert_eq!(newest_glibc(b"\0GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE"), "2.34");
        assert_eq!(newest_glibc(b"static"), "2.17");
    }

    #[test]
    fn every_file_of_the_package_is_in_the_repository() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (file, _) in FILES {
            assert!(root.join(file).exists(), "{file}");
        }
        let documents = documents(root).unwrap();
        assert!(documents.len() > 7, "{documents:?}");
    }
}
