//! Rule: no large circles of imports between files, and no imports from a lower layer to a higher
//! one.
//!
//! Applies to every crate under `crates`, `lab` and `tests`, and to `xtask`. At most two files may
//! import each other in a circle. `LAYERS` lists the layers of a crate, lowest first. A file may
//! import only from its own layer and lower ones. A layer is a file, a folder with its module file,
//! or `*`, which stands for all files that the list does not name. A crate of more than a dozen
//! files must have layers. An import is any path of the product code that begins with `crate::` or
//! `super::`. Method calls, and paths to a file's own children, are not considered.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::Source;

/// A crate's source folder and its layers, lowest first. In a crate without layers, any file may
/// import any other file.
struct CrateLayers<'a> {
    src: &'a str,
    layers: Vec<&'a str>,
}

/// For each crate with layers: the source folder, such as `crates/block/src/`, then the layers.
const LAYERS: &str = include_str!("../../layers.txt");

/// Largest number of files in a crate that is not divided into layers.
const FLAT_FILES_MAX: usize = 12;

/// Largest number of files that import each other in a circle.
const CIRCLE_MAX: usize = 2;

/// Imports of a crate: for each importing file, the imported files and the line of the first
/// import.
type FileImports = BTreeMap<String, BTreeMap<String, usize>>;

pub fn check(sources: &[Source]) -> Vec<Finding> {
    const ROOTS: [&str; 4] = ["crates/", "lab/", "tests/", "xtask/"];
    let checked = |source: &&Source| ROOTS.iter().any(|root| source.path.starts_with(root));
    let srcs: BTreeSet<String> = sources
        .iter()
        .filter(checked)
        .map(|source| format!("{}/src/", source.crate_path()))
        .collect();
    srcs.iter().flat_map(|src| check_house(sources, &CrateLayers::of(src, LAYERS))).collect()
}

impl<'a> CrateLayers<'a> {
    fn of(src: &'a str, list: &'a str) -> Self {
        let lines = list.lines().filter(|line| !line.trim().starts_with('#'));
        let mut words = lines.flat_map(str::split_whitespace).skip_while(|word| *word != src);
        words.next();
        CrateLayers { src, layers: words.take_while(|word| !word.ends_with('/')).collect() }
    }
}

fn check_house(sources: &[Source], house: &CrateLayers) -> Vec<Finding> {
    let inside = |source: &&Source| source.path.starts_with(house.src) && source.line_count() > 0;
    let files: BTreeMap<String, &Source> =
        sources.iter().filter(inside).map(|source| (module_of(house, source), source)).collect();
    let mut findings = Vec::new();
    if files.len() > FLAT_FILES_MAX && house.layers.is_empty() {
        let text = format!(
            "{} files without layers, at most {FLAT_FILES_MAX} are allowed; list the layers of {} \
             in xtask/layers.txt",
            files.len(),
            house.src
        );
        findings.push(Finding::new(&format!("{}lib.rs", house.src), 1, text));
    }
    let mut arrows = FileImports::new();
    for (name, source) in &files {
        let layer = layer_of(house, name);
        if layer.is_none() && !house.layers.is_empty() && name != "lib" {
            let text = "belongs to no layer; move it into one, or list its folder in \
                xtask/layers.txt";
            findings.push(Finding::new(&source.path, 1, text));
        }
        for (line, path) in source.outline.imports.iter().filter(|(line, _)| !source.is_test(*line))
        {
            let target = target(name, path, &|name| files.contains_key(name));
            let Some(target) = target.filter(|to| to != name && name != "lib") else { continue };
            arrows.entry(name.clone()).or_default().entry(target.clone()).or_insert(*line);
            let upwards = layer < layer_of(house, &target);
            if upwards {
                let text = format!(
                    "imports {target}, which is in a higher layer; the layers, lowest first: {}",
                    house.layers.join(", ")
                );
                findings.push(Finding::new(&source.path, *line, text));
            }
        }
    }
    for circle in circles(&arrows).into_iter().filter(|circle| circle.len() > CIRCLE_MAX) {
        let text = format!(
            "{} files import each other in a circle, at most {CIRCLE_MAX} are allowed: {}",
            circle.len(),
            circle.join(", ")
        );
        findings.push(Finding::new(&files[&circle[0]].path, 1, text));
    }
    findings
}

fn module_of(house: &CrateLayers, source: &Source) -> String {
    source.path[house.src.len()..].trim_end_matches(".rs").to_owned()
}

fn layer_of(house: &CrateLayers, module: &str) -> Option<usize> {
    let first = module.split('/').next()?;
    let named = |name: &str| house.layers.iter().position(|layer| *layer == name);
    named(first).or_else(|| named("*"))
}

fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn target(from: &str, path: &[String], exists: &dyn Fn(&str) -> bool) -> Option<String> {
    let mut file = from.to_owned();
    for part in path {
        let next = match part.as_str() {
            "crate" => String::new(),
            "super" => parent(&file).to_owned(),
            part if file.is_empty() => part.to_owned(),
            part => format!("{file}/{part}"),
        };
        if !["crate", "super"].contains(&part.as_str()) && !exists(&next) {
            break;
        }
        file = next;
    }
    exists(&file).then_some(file)
}

/// Returns the groups of files that import each other, directly or through others of the group.
fn circles(arrows: &FileImports) -> Vec<Vec<String>> {
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

/// Returns all files that `from` imports directly or indirectly. If `from` is part of an import
/// cycle, the result contains `from` itself.
fn reach<'a>(arrows: &'a FileImports, from: &str) -> BTreeSet<&'a str> {
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
        findings_in(&CrateLayers::of("s/", "s/ low high\nt/ other\n"), files)
    }

    fn findings_in(house: &CrateLayers<'_>, files: &[(&str, &str)]) -> Vec<String> {
        let parse = |(path, text): &(&str, &str)| Source::parse(&format!("s/{path}.rs"), text);
        let sources: Vec<Source> = files.iter().map(parse).collect();
        check_house(&sources, house).into_iter().map(|finding| finding.to_string()).collect()
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
        assert!(
            found[0].starts_with("s/low.rs:2: imports high, which is in a higher layer"),
            "{found:?}"
        );
    }

    #[test]
    fn a_star_is_the_layer_of_all_that_have_none() {
        let house = CrateLayers::of("s/", "# s/ none\ns/\n low *\n high");
        let files = [
            ("high", "use crate::any::A;\n"),
            ("any", "use crate::other::B;\nuse crate::high::C;\n"),
            ("other", "use crate::low::D;\n"),
            ("low", "use crate::other::B;\n"),
        ];
        let found = findings_in(&house, &files);
        let starts = ["s/any.rs:2: imports high, which", "s/low.rs:1: imports other, which"];
        assert!(found.len() == 2 && starts.iter().zip(&found).all(|(s, f)| f.starts_with(s)));
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
    fn circles_count_without_layers_and_through_braces() {
        let files = [
            ("lib", "pub use a::A;\n"),
            ("a", "use crate::{\n    b::B,\n    t::T,\n};\n"),
            ("b", "use super::{a::A, b::{self, c::{self, C}}};\n"),
            ("b/c", "fn f() -> crate::t::T { T {} }\n"),
            ("t", "use crate::a;\n"),
        ];
        let found = findings_in(&CrateLayers::of("s/", "t/ low"), &files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].ends_with(
            "4 files import each other in a circle, at most 2 are allowed: a, b, b/c, t"
        ));
    }

    #[test]
    fn every_crate_is_checked_by_itself() {
        let sources: Vec<Source> = ["a", "b", "c"]
            .into_iter()
            .zip(["b", "c", "a"])
            .flat_map(|(from, to)| {
                let text = format!("use crate::{to}::X;\n");
                [
                    Source::parse(&format!("lab/x/src/{from}.rs"), &text),
                    Source::parse(&format!("crates/{from}/src/{from}.rs"), &text),
                ]
            })
            .collect();
        let found = check(&sources);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].path, "lab/x/src/a.rs");
    }

    #[test]
    fn a_crate_of_more_than_a_dozen_files_needs_layers() {
        let files = |count: usize| -> Vec<Source> {
            let path = |number| format!("crates/x/src/f{number}.rs");
            (0..count).map(|number| Source::parse(&path(number), "fn f() {}\n")).collect()
        };
        assert_eq!(check(&files(12)).len(), 0);
        let found = check(&files(13));
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("crates/x/src/lib.rs:1: 13 files without layers"));
        let house = CrateLayers::of("crates/x/src/", "crates/x/src/ f0 f1");
        assert!(check_house(&files(2), &house).is_empty());
    }

    #[test]
    fn a_file_outside_the_layers_is_named() {
        let found = findings(&[("odd", "fn f() {}\n")]);
        assert!(found.len() == 1 && found[0].contains("belongs to no layer"), "{found:?}");
    }
}
