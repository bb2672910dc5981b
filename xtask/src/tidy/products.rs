//! Rule: the daemon's crates do not depend on the laboratory.
//!
//! A crate under `crates` has no package of `lab` among its dependencies and build dependencies, so
//! that building the daemon compiles no load generator and no simulator. Dev-dependencies are
//! allowed.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::source::numbered;
use super::{Finding, relative, walk};

const PRODUCT: &str = "crates";
const LABORATORY: &str = "lab";

pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let laboratory = manifests(root, LABORATORY)?;
    let names: Vec<&str> = laboratory.iter().filter_map(|(_, text)| name(text)).collect();
    let product = manifests(root, PRODUCT)?;
    Ok(product.iter().flat_map(|(path, text)| check_manifest(path, text, &names)).collect())
}

fn manifests(root: &Path, folder: &str) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    walk(&root.join(folder), &mut |path| {
        if path.ends_with("Cargo.toml") {
            found.push((relative(root, path), fs::read_to_string(path)?));
        }
        Ok(())
    })?;
    found.sort();
    Ok(found)
}

fn name(manifest: &str) -> Option<&str> {
    let line = manifest.lines().find(|line| line.starts_with("name = "))?;
    line.split('"').nth(1)
}

fn check_manifest(path: &str, manifest: &str, names: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut section = String::new();
    for (line, text) in numbered(manifest) {
        let text = text.trim();
        let mut word = text.split(['=', '.', ' ']).next().unwrap_or_default();
        if text.starts_with('[') {
            section = text.trim_matches(['[', ']']).to_owned();
            // A dependency may have its own section in Cargo.toml, such as `[dependencies.NAME]`.
            // The name of the dependency is then the last part of the section's name.
            word = section.rsplit('.').next().unwrap_or_default();
        }
        let renamed = names.iter().any(|name| text.contains(&format!("package = \"{name}\"")));
        let is_shipped = section.contains("dependencies") && !section.contains("dev-dependencies");
        if is_shipped && (names.contains(&word) || renamed) {
            let message = "the daemon depends on the laboratory; only dev-dependencies may, or \
                           move the shared code to a crate under crates/";
            findings.push(Finding::new(path, line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(manifest: &str) -> Vec<usize> {
        let names = ["millrace-lab", "millrace-clients"];
        check_manifest("m", manifest, &names).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_package_of_the_laboratory_is_for_tests_only() {
        let good = "[package]\nname = \"a\"\n[dependencies]\nmillrace-label = \"1\"\n\
                    [dev-dependencies]\nmillrace-lab.workspace = true\n";
        assert_eq!(lines(good), [0_usize; 0]);
        assert_eq!(lines("[dependencies]\na = \"1\"\nmillrace-lab.workspace = true\n"), [3]);
        assert_eq!(lines("[build-dependencies]\nmillrace-clients = { path = \"x\" }\n"), [2]);
        assert_eq!(lines("[target.'cfg(unix)'.dependencies]\nmillrace-lab = \"1\"\n"), [2]);
        assert_eq!(lines("[dependencies.millrace-lab]\npath = \"x\"\n"), [1]);
        assert_eq!(lines("[dependencies]\nb = { package = \"millrace-lab\" }\n"), [2]);
        assert_eq!(lines("[dev-dependencies.millrace-lab]\npath = \"x\"\n"), [0_usize; 0]);
    }

    #[test]
    fn the_name_of_a_package_is_that_of_its_manifest() {
        assert_eq!(name("[package]\nname = \"millrace-lab\"\n"), Some("millrace-lab"));
    }
}
