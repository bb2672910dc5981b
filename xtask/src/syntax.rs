//! Facts about items of a syntax tree: imported names, and test code.
//!
//! Called by `api` for public items and by `tidy` for the rules about code outside tests.

use syn::{Attribute, Item, Meta, UseTree};

#[derive(Debug, PartialEq, Eq)]
pub struct ImportedName {
    /// Path of the imported item as written. For a glob, the path of the module.
    pub path: Vec<String>,
    /// Name in the importing module, or `None` for a glob.
    pub name: Option<String>,
}

/// Returns the names that an item imports: those of a `use` line outside tests, none for other
/// items.
pub fn leaves(item: &Item) -> Vec<ImportedName> {
    let mut found = Vec::new();
    if let Item::Use(item) = item
        && !is_test(&item.attrs)
    {
        flatten(&item.tree, &mut Vec::new(), &mut found);
    }
    found
}

fn flatten(tree: &UseTree, path: &mut Vec<String>, found: &mut Vec<ImportedName>) {
    let leaf = |path: &[String], last: &syn::Ident, name: &syn::Ident| {
        let mut path = path.to_vec();
        // `a::{self}` imports `a`.
        let own = if last == "self" { path.pop() } else { None };
        let last = own.unwrap_or_else(|| last.to_string());
        let name = if name == "self" { last.clone() } else { name.to_string() };
        path.push(last);
        ImportedName { path, name: Some(name) }
    };
    match tree {
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            flatten(&inner.tree, path, found);
            path.pop();
        }
        UseTree::Name(last) => found.push(leaf(path, &last.ident, &last.ident)),
        UseTree::Rename(last) => found.push(leaf(path, &last.ident, &last.rename)),
        UseTree::Glob(_) => found.push(ImportedName { path: path.clone(), name: None }),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, path, found)),
    }
}

pub fn is_test(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            let words: Vec<&str> = condition.split(|c: char| !c.is_alphanumeric()).collect();
            let all = words[0] == "all" && words.contains(&"test") && !words.contains(&"not");
            all || words == ["test"]
        }
        _ => false,
    })
}
