//! Rule: seeded bugs are patches that apply to the sources, not hooks in the production sources.
//!
//! The lines that a hunk of `xtask/planted/*.patch` or `xtask/seams/*.patch` replaces must occur
//! exactly once in the file, so that no patch becomes outdated. Hooks for seeded bugs are calls of
//! `planted` and `weaker`. No file except the one that defines these functions may contain such
//! calls.

use std::path::Path;

use anyhow::Result;

use super::Finding;
use super::source::{Source, numbered};
use crate::planted::patch::{self, Patch};

const HOOKS: [&str; 2] = ["planted(Plant::", "weaker(Plant::"];
const DEFINITION: &str = "lab/checker/src/plant.rs";

pub fn check(root: &Path, sources: &[Source]) -> Result<Vec<Finding>> {
    let mut findings: Vec<Finding> = sources.iter().flat_map(check_hooks).collect();
    for directory in [patch::PLANTED, crate::seams::PATCHES] {
        for (list, patches) in patch::read(root, directory)? {
            findings.extend(check_list(&list, &patches, sources));
        }
    }
    Ok(findings)
}

fn check_hooks(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, code) in numbered(&source.code).filter(|_| source.path != DEFINITION) {
        if HOOKS.iter().any(|hook| code.contains(hook)) {
            let message = "code that seeds a bug; move it to a patch in xtask/planted";
            findings.push(Finding::new(&source.path, line, message));
        }
    }
    findings
}

fn check_list(list: &str, patches: &[Patch], sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for patch in patches {
        let source = sources.iter().find(|source| source.path == patch.path);
        for hunk in &patch.hunks {
            let place = match source {
                Some(source) => hunk.place(&source.text).map(|_| ()),
                None if hunk.before.is_empty() => Ok(()),
                None => Err("there is no such file".to_owned()),
            };
            if let Err(why) = place {
                let message = format!("`{}` of {}: {why}", hunk.name, patch.path);
                findings.push(Finding::new(list, hunk.line, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_patch_whose_lines_are_gone_is_found() {
        let list = "--- a.rs\n@@ f\n-    x();\n+    y();\n@@ g\n-    z();\n--- b.rs\n@@ h\n-v();\n";
        let patches = patch::parse(list).expect("it is a list");
        let sources = [Source::parse("a.rs", "fn f() {\n    x();\n}\n")];
        assert_eq!(lines(&check_list("l", &patches, &sources)), [5, 8]);
    }

    #[test]
    fn a_hook_stands_only_where_hooks_are_defined() {
        let text = "fn f() {\n    // planted(Plant::A)\n    if planted(Plant::A) {}\n}\n";
        assert_eq!(lines(&check_hooks(&Source::parse("crates/a/src/a.rs", text))), [3]);
        assert!(check_hooks(&Source::parse(DEFINITION, text)).is_empty());
    }
}
