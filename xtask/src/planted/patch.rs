//! Patches that add hooks for seeded bugs to the production sources: `xtask/planted/*.patch`.
//!
//! The format is a diff without line numbers, so that code above may grow and shrink:
//!
//! - `--- path` begins the patch of a file.
//! - `@@ name` begins a hunk. The name is that of the changed function.
//! - Other lines begin with a blank (context), `-` (removed) or `+` (added).
//!
//! The context and removed lines of a hunk must occur in the file exactly once, consecutively. Some
//! added lines have no such position: those before the first hunk, and those of hunks with only `+`
//! lines. These are appended to the file. Called by `planted`, by `seams`, and by the rule of
//! `cargo xtask tidy` that checks if all patches still fit.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub const PLANTED: &str = "xtask/planted";

#[derive(Debug, PartialEq, Eq)]
pub struct Patch {
    pub path: String,
    pub hunks: Vec<Hunk>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Hunk {
    pub name: String,
    /// Line number of the hunk in the patch file, from 1.
    pub line: usize,
    /// Lines of the production file that the hunk replaces.
    pub before: String,
    pub after: String,
}

impl Hunk {
    /// Returns the range of `text` that the hunk replaces. If the hunk only adds lines, returns the
    /// empty range at the end of `text`.
    pub fn place(&self, text: &str) -> Result<Range<usize>, String> {
        if self.before.is_empty() {
            return Ok(text.len()..text.len());
        }
        let is_line = |at: usize| at == 0 || text[..at].ends_with('\n');
        let mut found =
            text.match_indices(&self.before).map(|(at, _)| at).filter(|at| is_line(*at));
        match (found.next(), found.count()) {
            (Some(at), 0) => Ok(at..at + self.before.len()),
            (None, _) => Err(
                "the lines that the hunk replaces are not in the file any more; adapt the patch"
                    .to_owned(),
            ),
            (Some(_), more) => Err(format!(
                "the lines that the hunk replaces occur {} times in the file; add lines of context",
                more + 1
            )),
        }
    }
}

impl Patch {
    pub fn apply(&self, text: &str) -> Result<String> {
        let mut places = Vec::new();
        for hunk in &self.hunks {
            match hunk.place(text) {
                Ok(place) => places.push((place, hunk)),
                Err(why) => bail!("{}: the patch of `{}`: {why}", self.path, hunk.name),
            }
        }
        places.sort_by_key(|(place, hunk)| (place.start, hunk.line));
        let (mut patched, mut done) = (String::new(), 0);
        for (place, hunk) in places {
            if place.start < done {
                bail!("{}: two patches change the same lines of `{}`", self.path, hunk.name);
            }
            patched.push_str(&text[done..place.start]);
            patched.push_str(&hunk.after);
            done = place.end;
        }
        patched.push_str(&text[done..]);
        Ok(patched)
    }
}

pub fn read(root: &Path, directory: &str) -> Result<BTreeMap<String, Vec<Patch>>> {
    let mut lists = BTreeMap::new();
    let entries =
        fs::read_dir(root.join(directory)).with_context(|| format!("cannot list {directory}"))?;
    for entry in entries {
        let name = format!("{directory}/{}", entry?.file_name().to_string_lossy());
        let text = fs::read_to_string(root.join(&name));
        let text = text.with_context(|| format!("cannot read {name}"))?;
        lists.insert(name.clone(), parse(&text).with_context(|| format!("cannot parse {name}"))?);
    }
    Ok(lists)
}

/// Returns the patched text of each file below `root` that the patches change.
pub fn apply_all<'a>(
    root: &Path,
    patches: impl IntoIterator<Item = &'a Patch>,
) -> Result<BTreeMap<PathBuf, String>> {
    let mut changed = BTreeMap::new();
    for patch in patches {
        let file = root.join(&patch.path);
        // A file that does not exist is created if its hunks only append lines.
        let is_new = !file.exists() && patch.hunks.iter().all(|hunk| hunk.before.is_empty());
        let text = if is_new { Ok(String::new()) } else { fs::read_to_string(&file) };
        let text = text.with_context(|| format!("cannot read {}", patch.path))?;
        if changed.insert(PathBuf::from(&patch.path), patch.apply(&text)?).is_some() {
            bail!("{} has two patches; merge them into one", patch.path);
        }
    }
    Ok(changed)
}

pub fn parse(text: &str) -> Result<Vec<Patch>> {
    let mut patches: Vec<Patch> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(path) = line.strip_prefix("--- ") {
            let end = Hunk { name: "its end".to_owned(), line: number, ..Hunk::default() };
            patches.push(Patch { path: path.to_owned(), hunks: vec![end] });
            continue;
        }
        let Some(patch) = patches.last_mut() else {
            bail!("line {number}: `--- path` must come first");
        };
        if let Some(name) = line.strip_prefix("@@ ") {
            let name = name.to_owned();
            patch.hunks.push(Hunk { name, line: number, ..Hunk::default() });
            continue;
        }
        let hunk = patch.hunks.last_mut().expect("a patch is created with one hunk");
        let (stays, goes) = (line.starts_with(' '), line.starts_with('-'));
        if !(stays || goes || line.starts_with('+')) {
            bail!("line {number}: must begin with `--- `, `@@ `, a blank, `-` or `+`");
        }
        if stays || goes {
            hunk.before.extend([&line[1..], "\n"]);
        }
        if !goes {
            hunk.after.extend([&line[1..], "\n"]);
        }
    }
    for patch in &mut patches {
        patch.hunks.retain(|hunk| hunk.before != hunk.after);
    }
    Ok(patches)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# Why.\n--- a.rs\n+use hook;\n@@ f\n     x();\n-    y();\n+    if !hook {\n\
                        +        y();\n+    }\n";
    const FILE: &str = "fn f() {\n    x();\n    y();\n}\nfn g() {\n    y();\n}\n";

    fn only(list: &str) -> Patch {
        parse(list).expect("it is a list").pop().expect("it has a patch")
    }

    #[test]
    fn a_patch_changes_the_one_place_and_adds_to_the_end() {
        let patched = only(LIST).apply(FILE).expect("it fits");
        let body = "    x();\n    if !hook {\n        y();\n    }\n";
        assert_eq!(patched, format!("fn f() {{\n{body}}}\nfn g() {{\n    y();\n}}\nuse hook;\n"));
    }

    #[test]
    fn lines_that_are_gone_or_stand_twice_are_no_place() {
        let hunk = |list| only(list).hunks.pop().expect("it has a hunk");
        let gone = hunk("--- a.rs\n@@ f\n-    z();\n").place(FILE).expect_err("gone");
        assert!(gone.contains("not in the file"), "{gone}");
        let twice = hunk("--- a.rs\n@@ f\n-    y();\n").place(FILE).expect_err("twice");
        assert!(twice.contains("2 times"), "{twice}");
        // Not in the middle of a line.
        assert!(hunk("--- a.rs\n@@ f\n-y();\n").place(FILE).is_err());
        assert_eq!(hunk(LIST).place(FILE), Ok(9..27));
    }

    #[test]
    fn patches_of_the_same_lines_are_refused() {
        let list = "--- a.rs\n@@ f\n     x();\n+    z();\n@@ g\n     x();\n-    y();\n";
        let error = only(list).apply(FILE).expect_err("they overlap").to_string();
        assert!(error.contains("same lines"), "{error}");
    }

    #[test]
    fn a_list_with_a_line_of_another_kind_is_refused() {
        assert!(parse("@@ f\n").is_err());
        assert!(parse("--- a.rs\nx\n").is_err());
    }
}
