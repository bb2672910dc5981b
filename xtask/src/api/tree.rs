//! Syntax trees of a crate's modules, and the resolution of paths to items in them.
//!
//! Parses the files of the crate, beginning with `lib.rs` and following the `mod` lines. Modules
//! that are built only for tests are left out. Paths are resolved through `use` lines of any
//! visibility, including globs. A path that leaves the crate resolves to nothing. Called by
//! `api::stale` and `listing`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use syn::Item;

use crate::syntax::{is_test, leaves};

/// Maximum number of `use` lines followed in a chain. The limit also ends cycles of glob imports.
const USES_MAX: usize = 16;

/// A crate: the items of each module, by the module's path (with `::`, empty for the root).
#[derive(Default)]
pub struct CrateTree {
    modules: BTreeMap<String, Vec<Item>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathTarget {
    Module(String),
    /// An item of this crate: path of its module, and name.
    Item(String, String),
}

impl CrateTree {
    /// Reads a crate from its root; `file` returns the text of a file below the folder of `lib.rs`.
    pub fn read(file: &dyn Fn(&str) -> Option<String>) -> Result<CrateTree> {
        let mut tree = CrateTree::default();
        let root = syn::parse_file(&file("lib.rs").context("lib.rs is missing")?)?;
        tree.add("", root.items, file)?;
        Ok(tree)
    }

    fn add(
        &mut self,
        module: &str,
        mut items: Vec<Item>,
        file: &dyn Fn(&str) -> Option<String>,
    ) -> Result<()> {
        for item in &mut items {
            let Item::Mod(inner) = item else { continue };
            let name = join(module, &inner.ident.to_string());
            if is_test(&inner.attrs) {
                continue;
            }
            let items = match inner.content.take() {
                Some((_, items)) => items,
                None => {
                    let path = name.replace("::", "/");
                    let text = file(&format!("{path}.rs"));
                    let text = text.or_else(|| file(&format!("{path}/mod.rs")));
                    let text = text.with_context(|| format!("{path}.rs is missing"))?;
                    syn::parse_file(&text).with_context(|| format!("in {path}.rs"))?.items
                }
            };
            self.add(&name, items, file)?;
        }
        self.modules.insert(module.to_owned(), items);
        Ok(())
    }

    pub fn modules(&self) -> impl Iterator<Item = (&str, &[Item])> {
        self.modules.iter().map(|(path, items)| (path.as_str(), items.as_slice()))
    }

    pub fn items(&self, module: &str) -> &[Item] {
        self.modules.get(module).map_or(&[], Vec::as_slice)
    }

    /// Resolves `path` as seen from `module`. Returns `None` if the path leaves the crate.
    pub fn resolve(&self, module: &str, path: &[String]) -> Option<PathTarget> {
        self.follow(module, path, USES_MAX)
    }

    fn follow(&self, module: &str, path: &[String], uses: usize) -> Option<PathTarget> {
        let mut at = module.to_owned();
        for (index, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" => at = String::new(),
                "self" => {}
                "super" => at = at.rsplit_once("::").map_or("", |(above, _)| above).to_owned(),
                name => match self.lookup(&at, name, uses)? {
                    PathTarget::Module(inner) => at = inner,
                    item => return (index + 1 == path.len()).then_some(item),
                },
            }
        }
        Some(PathTarget::Module(at))
    }

    fn lookup(&self, module: &str, name: &str, uses: usize) -> Option<PathTarget> {
        let inner = join(module, name);
        if self.modules.contains_key(&inner) {
            return Some(PathTarget::Module(inner));
        }
        let items = self.items(module);
        if items.iter().any(|item| name_of(item).is_some_and(|ident| ident == name)) {
            return Some(PathTarget::Item(module.to_owned(), name.to_owned()));
        }
        let uses = uses.checked_sub(1)?;
        items.iter().flat_map(leaves).find_map(|leaf| match &leaf.name {
            // `use NAME;` names another crate. Do not follow it: looking up NAME in this module
            // would find this `use` again.
            Some(given) if given == name && leaf.path != [name] => {
                self.follow(module, &leaf.path, uses)
            }
            Some(_) => None,
            None => match self.follow(module, &leaf.path, uses)? {
                PathTarget::Module(inner) if inner != module => self.lookup(&inner, name, uses),
                _ => None,
            },
        })
    }
}

/// Returns the name that an item defines, or `None` for modules.
pub fn name_of(item: &Item) -> Option<&syn::Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

pub fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &'static [(&str, &str)]) -> CrateTree {
        let file = |name: &str| Some(files.iter().find(|(path, _)| *path == name)?.1.to_owned());
        CrateTree::read(&file).unwrap()
    }

    fn path(text: &str) -> Vec<String> {
        text.split("::").map(str::to_owned).collect()
    }

    #[test]
    fn a_path_is_followed_through_modules_uses_and_globs() {
        let tree = tree(&[
            ("lib.rs", "mod a; use a::b::*; use a::C as D; use std::io::Error;"),
            ("a.rs", "mod b; pub use b::C; #[cfg(test)] mod tests;"),
            ("a/b.rs", "pub struct C; use super::*;"),
        ]);
        let c = Some(PathTarget::Item("a::b".into(), "C".into()));
        for text in ["C", "D", "a::C", "a::b::C", "crate::a::b::C", "self::D"] {
            assert_eq!(tree.resolve("", &path(text)), c, "{text}");
        }
        assert_eq!(tree.resolve("a::b", &path("super::C")), c);
        assert_eq!(tree.resolve("", &path("a::b")), Some(PathTarget::Module("a::b".into())));
        for text in ["Error", "std::io", "a::X"] {
            assert_eq!(tree.resolve("", &path(text)), None, "{text}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = CrateTree::read(&|name| (name == "lib.rs").then(|| "mod a;".to_owned()));
        assert_eq!(error.err().unwrap().to_string(), "a.rs is missing");
    }
}
