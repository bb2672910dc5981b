//! Copies of the tree in which mutants are tested and bugs are seeded.
//!
//! cargo-mutants changes files while it runs, and a killed run leaves the changes behind; `planted`
//! patches seeded bugs into files. So each command works on a copy of its own. The copy is kept
//! between runs, and unchanged files are not written again, so that cargo builds only changed
//! crates. The commands call this file, which runs git.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Copies the files of `root` to the folder `copy`, except files that git ignores. Removes all
/// other files from `copy`. Files in `changed` get the given texts instead.
pub fn mirror(root: &Path, copy: &Path, changed: &BTreeMap<PathBuf, String>) -> Result<()> {
    fs::create_dir_all(copy).with_context(|| format!("cannot create {}", copy.display()))?;
    let mut wanted = listed(root)?;
    wanted.extend(changed.keys().cloned());
    for path in &wanted {
        let text = changed.get(path).map(String::as_bytes);
        copy_changed(&root.join(path), text, &copy.join(path))?;
    }
    remove_others(copy, copy, &wanted)
}

/// Returns a command that runs cargo. Under `cargo xtask` this is the calling cargo, with the same
/// toolchain.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn listed(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    // `git ls-files` also lists files whose deletion is not committed; leave these out.
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(|p| root.join(p).is_file()).collect())
}

fn copy_changed(from: &Path, text: Option<&[u8]>, to: &Path) -> Result<()> {
    let bytes = match text {
        Some(text) => text.to_owned(),
        None => fs::read(from).with_context(|| format!("cannot read {}", from.display()))?,
    };
    if fs::read(to).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let folder = to.parent().with_context(|| format!("{} has no folder", to.display()))?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // `fs::copy` is not used, because the new file must be newer than the build output of the old
    // file.
    fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    // A file that a patch adds does not exist in the tree, so there are no permissions to copy.
    let Ok(metadata) = fs::metadata(from) else { return Ok(()) };
    fs::set_permissions(to, metadata.permissions())
        .with_context(|| format!("cannot mark {}", to.display()))
}

fn remove_others(copy: &Path, folder: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(copy, &path, wanted)?;
        } else if !path.strip_prefix(copy).is_ok_and(|inner| wanted.contains(inner)) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}
