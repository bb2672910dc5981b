//! `cargo xtask tidy`: checks the rules of style that rustfmt and clippy do not know.
//!
//! Each rule is a file with a function `check` from the text of sources to `Finding`s.
//! `xtask/allow` lists exceptions to rules. An entry that is not needed is itself a finding, so
//! the lists can only shrink.

mod allow;
mod block;
mod comments;
mod commits;
mod documents;
mod header;
mod layers;
mod layout;
mod names;
mod patches;
mod places;
mod products;
mod size;
mod source;
mod test_names;
mod unsafety;
mod walk_table;

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use allow::AllowList;
use source::Source;

/// Folders whose Rust files are checked; `fuzz` is a workspace of its own.
const RUST_ROOTS: [&str; 4] = ["crates", "lab", "xtask", "tests"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Path from the root of the repository, with `/` as separator.
    pub path: String,
    pub line: usize,
    pub message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

pub fn run(root: &Path) -> Result<bool> {
    let mut sources = Vec::new();
    for folder in RUST_ROOTS {
        read_rust(root, &root.join(folder), &mut sources)?;
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));

    let mut findings = check_sources(root, &sources)?;
    findings.extend(documents::check(root, &sources)?);
    findings.extend(commits::check(root));
    findings.extend(patches::check(root, &sources)?);
    findings.extend(places::check(root)?);
    findings.extend(products::check(root)?);
    let stale = crate::api::stale(root)?.into_iter();
    findings.extend(stale.map(|file| Finding::new(&file.path, file.line, crate::api::ADVICE)));
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));

    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} Rust files, {} findings", sources.len(), findings.len());
    Ok(findings.is_empty())
}

const FILE_RULES: [fn(&Source) -> Vec<Finding>; 4] =
    [header::check, layout::check, block::check, test_names::check];

type ListRule = fn(&[Source], &AllowList) -> Vec<Finding>;

const LIST_RULES: [(&str, ListRule); 5] = [
    ("size", size::check),
    ("unsafe", unsafety::check),
    ("atomics", block::check_list),
    ("names", names::check),
    ("comments", comments::check),
];

fn check_sources(root: &Path, sources: &[Source]) -> Result<Vec<Finding>> {
    let mut findings = layers::check(sources);
    for source in sources {
        if let Some((line, why)) = &source.parse_error {
            let message = format!("does not parse, so it was not checked: {why}; fix it");
            findings.push(Finding::new(&source.path, *line, message));
        }
        findings.extend(FILE_RULES.iter().flat_map(|check| check(source)));
    }
    for (name, check) in LIST_RULES {
        let list = AllowList::read(root, &format!("xtask/allow/{name}.txt"))?;
        findings.extend(check(sources, &list));
    }
    Ok(findings)
}

fn read_rust(root: &Path, folder: &Path, sources: &mut Vec<Source>) -> Result<()> {
    walk(folder, &mut |path| {
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {} as UTF-8 text", path.display()))?;
            sources.push(Source::parse(&relative(root, path), &text));
        }
        Ok(())
    })
}

fn walk(folder: &Path, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    let entries = fs::read_dir(folder)
        .with_context(|| format!("cannot list the folder {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name == "target" || name == "artifacts" || name.to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), visit)?;
        } else {
            visit(&entry.path())?;
        }
    }
    Ok(())
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}
