//! Rule: the folders of a crate are layers, and a file imports only downwards.
//!
//! A layer is a folder with the file of its name; it stands on the layers that `HOUSES` lists
//! before it. Within a layer files may import each other, but no more than two of them in a circle.
//! An import is any path of the product code that begins with `crate::` or `super::`; calls of
//! methods are not seen. Called by `tidy::run` with all files at once.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::Source;

/// A crate's source folder and its layers, the lowest first.
struct House {
    src: &'static str,
    layers: &'static [&'static str],
}

const HOUSES: [House; 1] = [House {
    src: "crates/block/src/",
    layers: &["bio", "chain", "account", "queue", "trace", "disk", "volume", "channel"],
}];

/// Most files of one circle of imports.
const CIRCLE_MAX: usize = 2;

/// Imports of a house: from which file to which other one, with the first line that says so.
type Arrows = BTreeMap<String, BTreeMap<String, usize>>;

/// Checks the crates of `HOUSES`.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    HOUSES.iter().flat_map(|house| check_house(sources, house)).collect()
}

fn check_house(sources: &[Source], house: &House) -> Vec<Finding> {
    let inside = |source: &&Source| source.path.starts_with(house.src) && source.line_count() > 0;
    let files: BTreeMap<String, &Source> =
        sources.iter().filter(inside).map(|source| (module_of(house, source), source)).collect();
    let mut findings = Vec::new();
    let mut arrows = Arrows::new();
    for (name, source) in &files {
        let layer = layer_of(house, name);
        if layer.is_none() && name != "lib" {
            let text = "is in no layer; put it into one, or list its folder in tidy's layers";
            findings.push(Finding::new(&source.path, 1, text));
        }
        for (line, target) in imports(name, source, &|name| files.contains_key(name)) {
            if target == *name || name == "lib" {
                continue;
            }
            arrows.entry(name.clone()).or_default().entry(target.clone()).or_insert(line);
            let upwards = layer < layer_of(house, &target);
            if upwards {
                let text = format!(
                    "imports {target}, which stands above it; layers from below: {}",
                    house.layers.join(", ")
                );
                findings.push(Finding::new(&source.path, line, text));
            }
        }
    }
    for circle in circles(&arrows).into_iter().filter(|circle| circle.len() > CIRCLE_MAX) {
        let text = format!(
            "{} files import each other in a circle, {CIRCLE_MAX} at most: {}",
            circle.len(),
            circle.join(", ")
        );
        findings.push(Finding::new(&files[&circle[0]].path, 1, text));
    }
    findings
}

/// A file's module as a path with `/`: `disk`, `disk/visit`.
fn module_of(house: &House, source: &Source) -> String {
    source.path[house.src.len()..].trim_end_matches(".rs").to_owned()
}

fn layer_of(house: &House, module: &str) -> Option<usize> {
    let first = module.split('/').next();
    house.layers.iter().position(|layer| Some(*layer) == first)
}

/// The files that a file's paths lead to, with their lines.
fn imports(name: &str, source: &Source, exists: &dyn Fn(&str) -> bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, code) in source.product_code() {
        for (start, root) in [("crate::", ""), ("super::", parent(name))] {
            for (at, _) in code.match_indices(start) {
                if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                let rest = &code[at + start.len()..];
                found.extend(target(root, rest, exists).map(|file| (line, file)));
            }
        }
    }
    found
}

fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The deepest file on a path such as `bio::limits::QueueLimits`, from the module `root`.
fn target(root: &str, path: &str, exists: &dyn Fn(&str) -> bool) -> Option<String> {
    let mut file = root.to_owned();
    for part in path.split("::") {
        let word = part.split(|c: char| c != '_' && !c.is_alphanumeric()).next().unwrap_or("");
        let next = if file.is_empty() { word.to_owned() } else { format!("{file}/{word}") };
        if word.is_empty() || !exists(&next) {
            break;
        }
        file = next;
        if word.len() != part.len() {
            break;
        }
    }
    (!file.is_empty() && exists(&file)).then_some(file)
}

/// Groups of files that import each other, straight or through others of the group.
fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        arrows.keys().map(|from| (from.as_str(), reach(arrows, from))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (from, to) in &reached {
        let back = |other: &&&str| reached.get(**other).is_some_and(|back| back.contains(from));
        let circle: Vec<String> = to.iter().filter(back).map(|name| (*name).to_owned()).collect();
        if !circle.is_empty() && seen.insert(circle.clone()) {
            found.push(circle);
        }
    }
    found
}

/// All files that can be reached from one, itself only if a circle leads back.
fn reach<'a>(arrows: &'a Arrows, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(name) = open.pop() {
        for next in arrows.get(name).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let house = House { src: "s/", layers: &["low", "high"] };
        let parse = |(path, text): &(&str, &str)| Source::parse(&format!("s/{path}.rs"), text);
        let sources: Vec<Source> = files.iter().map(parse).collect();
        check_house(&sources, &house).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn imports_downwards_and_circles_of_two_pass() {
        let files = [
            ("lib", "pub use high::A;\n"),
            ("low", "pub mod a;\n"),
            ("low/a", "use crate::low::b::B;\n"),
            ("low/b", "use super::a::A;\n"),
            ("high", "use crate::low::{a::A};\nuse crate::low::a::{self, B};\n"),
        ];
        assert_eq!(findings(&files), Vec::<String>::new());
    }

    #[test]
    fn an_import_upwards_is_found_where_it_stands_and_not_in_tests() {
        let up = "fn f() {}\nuse crate::high::A;\n";
        let test = "#[cfg(test)]\nmod tests {\n    use crate::high::A;\n}\nfn f() {}\n";
        let found = findings(&[("low", up), ("low/t", test), ("high", "fn f() {}\n")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("s/low.rs:2: imports high, which stands above"), "{found:?}");
    }

    #[test]
    fn three_files_in_a_circle_are_named() {
        let files = [
            ("low/a", "use crate::low::b::B;\n"),
            ("low/b", "use crate::low::c::C;\n"),
            ("low/c", "use crate::low::a::A;\n"),
            ("low", "fn f() {}\n"),
        ];
        let found = findings(&files);
        assert_eq!(found.len(), 1);
        assert!(found[0].ends_with("low/a, low/b, low/c"), "{found:?}");
    }

    #[test]
    fn a_file_outside_the_layers_is_named() {
        let found = findings(&[("odd", "fn f() {}\n")]);
        assert!(found.len() == 1 && found[0].contains("is in no layer"), "{found:?}");
    }
}
