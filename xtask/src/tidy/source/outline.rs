//! Outline of a file from its syntax tree: functions and structs, and the lines of tests.
//!
//! Test code is any item under `#[cfg(test)]` or `#[test]`. Items inside macros are not seen.
//! Called by `Source::parse`; walks the tree of `syn`.

use proc_macro2::Span;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::syntax::{is_test, leaves};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    /// A function or method; its size is the number of lines between its braces.
    Function,
    /// A struct; its size is its number of fields.
    Struct,
}

#[derive(Debug, Clone)]
pub struct Item {
    pub kind: ItemKind,
    pub name: String,
    /// Line of the name, from 1.
    pub line: usize,
    /// Number of lines of a function, or of fields of a struct.
    pub size: usize,
    /// True for an `unsafe fn` that is not demanded by a trait.
    pub is_unsafe: bool,
    pub docs: String,
    /// Number of arguments of the function; zero where a trait demands them.
    pub takes: ArgumentCounts,
}

/// Arguments of a function besides `self`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArgumentCounts {
    pub arguments: usize,
    pub bools: usize,
}

/// A name that the file defines: a function, type, trait, constant or variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    pub name: String,
    /// Type of the method, if it is one of an `impl` without a trait.
    pub method_of: Option<String>,
    /// Line of the name, from 1.
    pub line: usize,
}

#[derive(Debug, Default)]
pub struct Outline {
    pub items: Vec<Item>,
    pub definitions: Vec<Definition>,
    /// Paths that begin with `crate` or `super`, and their lines.
    pub imports: Vec<(usize, Vec<String>)>,
    /// First and last lines of test items, from 1.
    pub test_lines: Vec<(usize, usize)>,
    /// True if the whole file is under `#![cfg(test)]`.
    pub all_test: bool,
    in_trait_impl: bool,
    impl_of: Option<String>,
}

/// Builds the outline of a syntax tree.
pub fn of(file: &syn::File) -> Outline {
    let mut outline = Outline { all_test: is_test(&file.attrs), ..Outline::default() };
    outline.visit_file(file);
    outline
}

impl Outline {
    fn mark(&mut self, attrs: &[syn::Attribute], span: Span) {
        if is_test(attrs) {
            self.test_lines.push((span.start().line, span.end().line));
        }
    }

    fn import(&mut self, line: usize, path: Vec<String>) {
        if matches!(path.first().map(String::as_str), Some("crate" | "super")) {
            self.imports.push((line, path));
        }
    }

    fn function(&mut self, attrs: &[syn::Attribute], sig: &syn::Signature, body: Option<Span>) {
        // The lines with the function's braces do not count.
        let size = body.map_or(0, |span| (span.end().line - span.start().line).saturating_sub(1));
        self.items.push(Item {
            kind: ItemKind::Function,
            name: sig.ident.to_string(),
            line: sig.ident.span().start().line,
            size,
            is_unsafe: is_unsafe(sig) && !self.in_trait_impl,
            docs: docs(attrs),
            takes: if self.in_trait_impl { ArgumentCounts::default() } else { takes(sig) },
        });
        let method_of = self.impl_of.clone();
        self.definitions.push(Definition { method_of, ..definition(&sig.ident) });
    }
}

/// Defines a visitor that only records if an item is test code, and its name.
macro_rules! mark_only {
    ($($method:ident: $kind:ident $($named:ident)?),* $(,)?) => {
        $(fn $method(&mut self, item: &'ast syn::$kind) {
            self.mark(&item.attrs, item.span());
            $(self.definitions.push(definition(&item.$named));)?
            visit::$method(self, item);
        })*
    };
}

impl<'ast> Visit<'ast> for Outline {
    mark_only! {
        visit_item_mod: ItemMod,
        visit_item_use: ItemUse,
        visit_item_extern_crate: ItemExternCrate,
        visit_item_const: ItemConst ident,
        visit_item_static: ItemStatic ident,
        visit_item_enum: ItemEnum ident,
        visit_item_trait: ItemTrait ident,
        visit_item_type: ItemType ident,
        visit_item_macro: ItemMacro,
        visit_local: Local,
        visit_field: Field,
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        let line = item.span().start().line;
        leaves(item).into_iter().for_each(|leaf| self.import(line, leaf.path));
        visit::visit_item(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string());
        self.import(path.span().start().line, names.collect());
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // The path in `pub(super)` imports nothing.
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let arguments = Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        if let Ok(list) = call.parse_body_with(arguments) {
            let mut inner = Outline::default();
            list.iter().for_each(|argument| inner.visit_expr(argument));
            self.imports.append(&mut inner.imports);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.mark(&item.attrs, item.span());
        let of = type_name(&item.self_ty).filter(|_| item.trait_.is_none());
        let outer_of = std::mem::replace(&mut self.impl_of, of);
        let outer = std::mem::replace(&mut self.in_trait_impl, item.trait_.is_some());
        visit::visit_item_impl(self, item);
        (self.in_trait_impl, self.impl_of) = (outer, outer_of);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.mark(&item.attrs, item.span());
        self.items.push(Item {
            kind: ItemKind::Struct,
            name: item.ident.to_string(),
            line: item.ident.span().start().line,
            size: item.fields.len(),
            is_unsafe: false,
            docs: docs(&item.attrs),
            takes: ArgumentCounts::default(),
        });
        self.definitions.push(definition(&item.ident));
        visit::visit_item_struct(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.mark(&item.attrs, item.span());
        self.function(&item.attrs, &item.sig, Some(item.block.span()));
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.mark(&item.attrs, item.span());
        self.function(&item.attrs, &item.sig, Some(item.block.span()));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.mark(&item.attrs, item.span());
        let body = item.default.as_ref().map(Spanned::span);
        self.function(&item.attrs, &item.sig, body);
        visit::visit_trait_item_fn(self, item);
    }
}

fn definition(ident: &syn::Ident) -> Definition {
    Definition { name: ident.to_string(), method_of: None, line: ident.span().start().line }
}

fn type_name(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
}

fn takes(sig: &syn::Signature) -> ArgumentCounts {
    let typed = sig.inputs.iter().filter_map(|input| match input {
        syn::FnArg::Typed(typed) => Some(&*typed.ty),
        syn::FnArg::Receiver(_) => None,
    });
    let is_bool = |of: &&syn::Type| matches!(of, syn::Type::Path(p) if p.path.is_ident("bool"));
    ArgumentCounts { arguments: typed.clone().count(), bools: typed.filter(is_bool).count() }
}

fn docs(attrs: &[syn::Attribute]) -> String {
    let mut text = String::new();
    for attr in attrs {
        if let syn::Meta::NameValue(pair) = &attr.meta
            && pair.path.is_ident("doc")
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) = &pair.value
        {
            text.push_str(&line.value());
            text.push('\n');
        }
    }
    text
}

fn is_unsafe(sig: &syn::Signature) -> bool {
    matches!(sig.safety, syn::Safety::Unsafe(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(text: &str) -> Outline {
        of(&syn::parse_file(text).unwrap())
    }

    #[test]
    fn a_function_is_as_long_as_the_lines_between_its_braces() {
        let items = outline("/// F.\nfn f(\n) {\n    a();\n    b();\n}\nfn g() { a() }\n").items;
        assert_eq!((items[0].name.as_str(), items[0].line, items[0].size), ("f", 2, 2));
        assert_eq!(items[1].size, 0);
    }

    #[test]
    fn a_struct_is_as_large_as_its_fields() {
        let items = outline("struct A { x: u8, y: u8 }\nstruct B(u8);\nstruct C;\n").items;
        assert_eq!(items.iter().map(|item| item.size).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn arguments_exclude_self_and_those_that_a_trait_demands() {
        let text = "impl A { fn f(&self, a: bool, b: &bool) {} }\n\
                    impl T for A { fn g(&self, a: bool) {} }\nfn h() {}\n";
        let outline = outline(text);
        let takes: Vec<_> =
            outline.items.iter().map(|i| (i.takes.arguments, i.takes.bools)).collect();
        assert_eq!(takes, [(2, 1), (0, 0), (0, 0)]);
        let of: Vec<_> = outline.definitions.iter().map(|d| d.method_of.as_deref()).collect();
        assert_eq!(of, [Some("A"), None, None]);
    }

    #[test]
    fn test_items_are_found_with_their_attributes() {
        let text = "fn f() {}\n#[cfg(test)]\nuse a::b;\n#[cfg(not(test))]\nuse c::d;\n\
                    #[cfg(all(test, unix))]\nmod m {\n}\n";
        assert_eq!(outline(text).test_lines, [(2, 3), (6, 8)]);
        assert!(outline("#![cfg(test)]\nfn f() {}\n").all_test);
    }

    #[test]
    fn an_unsafe_method_of_a_trait_impl_inherits_its_docs() {
        let items = outline("impl A { unsafe fn f() {} }\nimpl T for A { unsafe fn g() {} }").items;
        assert_eq!((items[0].is_unsafe, items[1].is_unsafe), (true, false));
    }
}
