//! The public items of a crate, one line each, sorted by name.
//!
//! A line has the item's public path, then the item as in the source but on one line, then the
//! features that it needs. An item comes before its fields, variants and methods, and these come
//! before the traits that a type implements. Called by `api::stale`.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;
use syn::{Attribute, Generics, ImplItem, Item, ItemImpl, TraitItem, Type, Visibility};

use super::tree::{CrateTree, PathTarget, join, name_of};
use crate::syntax::{is_test, leaves};

/// Kind of an entry in an API listing. Entries with the same name are sorted by kind, in this
/// order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LineRank {
    Item,
    Part,
    Trait,
}

const SHORTENED: [(&str, &str); 7] = [
    ("( ", "("),
    (", )", ")"),
    (" )", ")"),
    (", >", ">"),
    ("< ", "<"),
    ("(mut ", "("),
    (", mut ", ", "),
];

pub fn of(tree: &CrateTree) -> String {
    let mut listing = Listing { tree, impls: impls(tree), lines: BTreeSet::new() };
    listing.module("", "", "");
    let line = |(name, _, text): &(String, LineRank, String)| format!("{name}: {text}\n");
    listing.lines.iter().map(line).collect()
}

fn impls(tree: &CrateTree) -> BTreeMap<PathTarget, Vec<&ItemImpl>> {
    let mut found: BTreeMap<PathTarget, Vec<&ItemImpl>> = BTreeMap::new();
    for (module, items) in tree.modules() {
        for item in items {
            let Item::Impl(block) = item else { continue };
            let target = path_of(&block.self_ty).and_then(|path| tree.resolve(module, &path));
            let is_listed = !is_test(&block.attrs) && !is_of_private_trait(tree, module, block);
            if let Some(target) = target.filter(|_| is_listed) {
                found.entry(target).or_default().push(block);
            }
        }
    }
    found
}

fn is_of_private_trait(tree: &CrateTree, module: &str, block: &ItemImpl) -> bool {
    let path = block.trait_.as_ref().and_then(|(path, _)| tree.resolve(module, &names(path)));
    let Some(PathTarget::Item(module, name)) = path else { return false };
    tree.items(&module).iter().any(|item| {
        matches!(item, Item::Trait(of) if of.ident == name && !is_public(&of.vis, &of.attrs))
    })
}

struct Listing<'a> {
    tree: &'a CrateTree,
    impls: BTreeMap<PathTarget, Vec<&'a ItemImpl>>,
    lines: BTreeSet<(String, LineRank, String)>,
}

impl Listing<'_> {
    fn line(&mut self, name: &str, rank: LineRank, text: String) {
        self.lines.insert((name.to_owned(), rank, text));
    }

    fn module(&mut self, module: &str, above: &str, when: &str) {
        let tree = self.tree;
        for item in tree.items(module) {
            match item {
                Item::Mod(inner) if is_public(&inner.vis, &inner.attrs) => {
                    let name = inner.ident.to_string();
                    let when = also(when, &inner.attrs);
                    self.line(&join(above, &name), LineRank::Item, format!("mod{when}"));
                    self.module(&join(module, &name), &join(above, &name), &when);
                }
                Item::Use(line) if is_public(&line.vis, &line.attrs) => {
                    let when = also(when, &line.attrs);
                    for leaf in leaves(item) {
                        self.reexport(module, above, (&leaf.path, leaf.name), &when);
                    }
                }
                item => {
                    if let Some(name) = name_of(item) {
                        self.item(module, item, &join(above, &name.to_string()), when);
                    }
                }
            }
        }
    }

    fn reexport(
        &mut self,
        module: &str,
        above: &str,
        (path, name): (&[String], Option<String>),
        when: &str,
    ) {
        let tree = self.tree;
        let public = join(above, name.as_deref().unwrap_or("*"));
        match tree.resolve(module, path) {
            Some(PathTarget::Module(inner)) if name.is_none() => self.module(&inner, above, when),
            Some(PathTarget::Module(inner)) => {
                self.line(&public, LineRank::Item, format!("mod{when}"));
                self.module(&inner, &public, when);
            }
            Some(PathTarget::Item(inner, original)) => {
                let named = |item: &&Item| name_of(item).is_some_and(|name| *name == original);
                for item in tree.items(&inner).iter().filter(named) {
                    self.item(&inner, item, &public, when);
                }
            }
            _ => self.line(&public, LineRank::Item, format!("use {}{when}", path.join("::"))),
        }
    }

    fn item(&mut self, module: &str, item: &Item, name: &str, when: &str) {
        let (vis, attrs, head) = match item {
            Item::Const(i) => (&i.vis, &i.attrs, typed("const", &i.ident, &i.ty)),
            Item::Static(i) => (&i.vis, &i.attrs, typed("static", &i.ident, &i.ty)),
            Item::Fn(i) => (&i.vis, &i.attrs, source(&i.sig)),
            Item::Type(i) => {
                let head = headed("type", &i.ident, &i.generics);
                (&i.vis, &i.attrs, format!("{head} = {}", source(&i.ty)))
            }
            Item::Struct(i) => (&i.vis, &i.attrs, headed("struct", &i.ident, &i.generics)),
            Item::Enum(i) => (&i.vis, &i.attrs, headed("enum", &i.ident, &i.generics)),
            Item::Trait(i) => {
                let kind = if i.unsafety.is_some() { "unsafe trait" } else { "trait" };
                let mut head = headed(kind, &i.ident, &i.generics);
                if !i.supertraits.is_empty() {
                    head.push_str(&format!(": {}", source(&i.supertraits)));
                }
                (&i.vis, &i.attrs, head)
            }
            _ => return,
        };
        if !is_public(vis, attrs) {
            return;
        }
        let open = attrs.iter().any(|attr| attr.path().is_ident("non_exhaustive"));
        let open = if open { " #[non_exhaustive]" } else { "" };
        let when = also(when, attrs);
        self.line(name, LineRank::Item, format!("{head}{open}{when}"));
        match item {
            Item::Struct(item) => {
                for (index, field) in item.fields.iter().enumerate() {
                    let own = field.ident.as_ref().map_or(index.to_string(), ToString::to_string);
                    let text = format!("field {own}: {}", source(&field.ty));
                    if is_public(&field.vis, &field.attrs) {
                        self.part(name, &text, &field.attrs, &when);
                    }
                }
            }
            Item::Enum(item) => {
                for variant in &item.variants {
                    let text = format!("variant {}{}", variant.ident, source(&variant.fields));
                    self.part(name, &text, &[], &when);
                }
            }
            Item::Trait(item) => {
                item.items.iter().for_each(|part| self.of_trait(name, part, &when));
            }
            _ => return,
        }
        self.derives(name, attrs, &when);
        let own = name_of(item).map(ToString::to_string).unwrap_or_default();
        let target = PathTarget::Item(module.to_owned(), own);
        for block in self.impls.get(&target).cloned().unwrap_or_default() {
            self.of_impl(name, block, &when);
        }
    }

    fn part(&mut self, name: &str, text: &str, attrs: &[Attribute], when: &str) {
        self.line(name, LineRank::Part, format!("{text}{}", also(when, attrs)));
    }

    fn derives(&mut self, name: &str, attrs: &[Attribute], when: &str) {
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("derive")) {
            let syn::Meta::List(list) = &attr.meta else { continue };
            for derived in list.tokens.to_string().split(',') {
                let derived = derived.replace(' ', "");
                let last = derived.rsplit("::").next().unwrap_or_default();
                if !last.is_empty() {
                    self.line(name, LineRank::Trait, format!("impl {last}{when}"));
                }
            }
        }
    }

    fn of_trait(&mut self, name: &str, part: &TraitItem, when: &str) {
        let (attrs, text, provided) = match part {
            TraitItem::Fn(i) => (&i.attrs, source(&i.sig), i.default.is_some()),
            TraitItem::Const(i) => (&i.attrs, typed("const", &i.ident, &i.ty), i.default.is_some()),
            TraitItem::Type(i) => {
                (&i.attrs, source(i).trim_end_matches(';').to_owned(), i.default.is_some())
            }
            _ => return,
        };
        let provided = if provided { " { .. }" } else { "" };
        self.part(name, &format!("{text}{provided}"), attrs, when);
    }

    fn of_impl(&mut self, name: &str, block: &ItemImpl, when: &str) {
        let when = also(when, &block.attrs);
        let (parameters, of) = (source(&block.generics), source(&block.self_ty));
        if let Some((path, _)) = &block.trait_ {
            let text = format!("impl{parameters} {} for {of}{when}", source(path));
            return self.line(name, LineRank::Trait, text);
        }
        let head = format!("impl{parameters} {of}");
        let within = if head.contains('<') { format!(" in {head}") } else { String::new() };
        for part in &block.items {
            let (vis, attrs, text) = match part {
                ImplItem::Fn(i) => (&i.vis, &i.attrs, source(&i.sig)),
                ImplItem::Const(i) => (&i.vis, &i.attrs, typed("const", &i.ident, &i.ty)),
                _ => continue,
            };
            if is_public(vis, attrs) {
                self.part(name, &format!("{text}{within}"), attrs, &when);
            }
        }
    }
}

/// Returns true if an item is public, not hidden from the documentation, and not only for tests.
fn is_public(vis: &Visibility, attrs: &[Attribute]) -> bool {
    let hidden = attrs.iter().any(|attr| {
        matches!(&attr.meta, syn::Meta::List(list)
            if list.path.is_ident("doc") && list.tokens.to_string() == "hidden")
    });
    matches!(vis, Visibility::Public(_)) && !hidden && !is_test(attrs)
}

/// Appends the `cfg` conditions of an item to `when`, such as ` if feature = "std"`.
fn also(when: &str, attrs: &[Attribute]) -> String {
    let mut all = when.to_owned();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("cfg")) {
        if let syn::Meta::List(list) = &attr.meta {
            let condition = format!(" if {}", list.tokens);
            if !all.contains(&condition) {
                all.push_str(&condition);
            }
        }
    }
    all
}

fn typed(kind: &str, ident: &syn::Ident, of: &Type) -> String {
    format!("{kind} {ident}: {}", source(of))
}

fn headed(kind: &str, ident: &syn::Ident, generics: &Generics) -> String {
    let parameters = source(generics);
    let bounds =
        generics.where_clause.as_ref().map_or(String::new(), |w| format!(" {}", source(w)));
    format!("{kind} {ident}{parameters}{bounds}")
}

fn source(part: &impl Spanned) -> String {
    one_line(&part.span().source_text().unwrap_or_default())
}

fn one_line(text: &str) -> String {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let words: Vec<&str> = code.flat_map(str::split_whitespace).collect();
    let mut line = words.join(" ");
    for (long, short) in SHORTENED {
        line = line.replace(long, short);
    }
    line
}

fn path_of(of: &Type) -> Option<Vec<String>> {
    match of {
        Type::Path(path) => Some(names(&path.path)),
        Type::Reference(inner) => path_of(&inner.elem),
        _ => None,
    }
}

fn names(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

#[cfg(test)]
mod tests;
