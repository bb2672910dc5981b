//! Outline of a file from its syntax tree: items and their sizes, imports, and the lines of tests.
//!
//! Test code is any item under `#[cfg(test)]` or `#[test]`. Items inside macros are not seen.

use proc_macro2::Span;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::syntax::{is_test, leaves};

#[derive(Debug, Clone, Default)]
pub struct Item {
    pub name: String,
    pub line: usize,
    /// Type to which a method belongs. `None` for functions outside `impl` blocks, and for methods
    /// that implement a trait.
    pub method_of: Option<String>,
    pub lines: usize,
    pub fields: usize,
    /// Number of arguments besides `self`. A tuple counts as its members. 0 in trait
    /// implementations, where the trait demands them.
    pub arguments: usize,
    pub bools: usize,
}

#[derive(Debug, Default)]
pub struct Outline {
    pub items: Vec<Item>,
    /// Module paths that begin with `crate` or `super`, split at `::`, each with its line number.
    pub imports: Vec<(usize, Vec<String>)>,
    /// First and last lines of test items, from 1.
    pub test_lines: Vec<(usize, usize)>,
    /// True if the whole file is under `#![cfg(test)]`.
    pub all_test: bool,
    in_trait_impl: bool,
    impl_of: Option<String>,
}

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

    fn function(&mut self, sig: &syn::Signature, body: Option<Span>) {
        // A function's lines are those between its opening and its closing brace, without the lines
        // of the braces.
        let lines = body.map_or(0, |span| (span.end().line - span.start().line).saturating_sub(1));
        let method_of = self.impl_of.clone();
        let mut item = Item { lines, method_of, ..item(&sig.ident) };
        for input in sig.inputs.iter().filter(|_| !self.in_trait_impl) {
            let syn::FnArg::Typed(typed) = input else { continue };
            item.arguments += values_in(&typed.ty);
            let is_bool = matches!(&*typed.ty, syn::Type::Path(p) if p.path.is_ident("bool"));
            item.bools += usize::from(is_bool);
        }
        self.items.push(item);
    }
}

/// Returns the number of values in an argument of this type. Each member of a tuple counts as a
/// value.
fn values_in(ty: &syn::Type) -> usize {
    match ty {
        syn::Type::Tuple(tuple) => tuple.elems.iter().map(values_in).sum(),
        syn::Type::Reference(reference) => values_in(&reference.elem),
        _ => 1,
    }
}

/// Defines visitor methods for kinds of items. Each method marks the item's lines if the item is
/// test code, and then runs the given code, which records the item.
macro_rules! visit_items {
    ($($method:ident: $kind:ident $($record:expr)?;)*) => {
        $(fn $method(&mut self, node: &'ast syn::$kind) {
            self.mark(&node.attrs, node.span());
            $(
                let record: fn(&mut Self, &syn::$kind) = $record;
                record(self, node);
            )?
            visit::$method(self, node);
        })*
    };
}

impl<'ast> Visit<'ast> for Outline {
    visit_items! {
        visit_item_mod: ItemMod;
        visit_item_use: ItemUse;
        visit_item_extern_crate: ItemExternCrate;
        visit_item_macro: ItemMacro;
        visit_local: Local;
        visit_field: Field;
        visit_item_const: ItemConst |outline, node| outline.items.push(item(&node.ident));
        visit_item_static: ItemStatic |outline, node| outline.items.push(item(&node.ident));
        visit_item_enum: ItemEnum |outline, node| outline.items.push(item(&node.ident));
        visit_item_trait: ItemTrait |outline, node| outline.items.push(item(&node.ident));
        visit_item_type: ItemType |outline, node| outline.items.push(item(&node.ident));
        visit_item_struct: ItemStruct |outline, node| {
            outline.items.push(Item { fields: node.fields.len(), ..item(&node.ident) });
        };
        visit_item_fn: ItemFn |outline, node| {
            outline.function(&node.sig, Some(node.block.span()));
        };
        visit_impl_item_fn: ImplItemFn |outline, node| {
            outline.function(&node.sig, Some(node.block.span()));
        };
        visit_trait_item_fn: TraitItemFn |outline, node| {
            outline.function(&node.sig, node.default.as_ref().map(Spanned::span));
        };
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
        // The path in `pub(super)` is not an import.
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
}

fn item(ident: &syn::Ident) -> Item {
    Item { name: ident.to_string(), line: ident.span().start().line, ..Item::default() }
}

fn type_name(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
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
        assert_eq!((items[0].name.as_str(), items[0].line, items[0].lines), ("f", 2, 2));
        assert_eq!(items[1].lines, 0);
    }

    #[test]
    fn a_struct_is_as_large_as_its_fields() {
        let items = outline("struct A { x: u8, y: u8 }\nstruct B(u8);\nstruct C;\n").items;
        assert_eq!(items.iter().map(|item| item.fields).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn arguments_exclude_self_and_those_that_a_trait_demands() {
        let text = "impl A { fn f(&self, a: bool, b: &bool) {} }\n\
                    impl T for A { fn g(&self, a: bool) {} }\nfn h() {}\n";
        let items = outline(text).items;
        let takes: Vec<_> = items.iter().map(|i| (i.arguments, i.bools)).collect();
        assert_eq!(takes, [(2, 1), (0, 0), (0, 0)]);
        let of: Vec<_> = items.iter().map(|item| item.method_of.as_deref()).collect();
        assert_eq!(of, [Some("A"), None, None]);
    }

    #[test]
    fn a_tuple_counts_as_its_members() {
        let items = outline("fn f(a: (u8, &(u8, bool)), b: [(u8, u8); 2], c: u8) {}\n").items;
        assert_eq!(items[0].arguments, 5);
    }

    #[test]
    fn test_items_are_found_with_their_attributes() {
        let text = "fn f() {}\n#[cfg(test)]\nuse a::b;\n#[cfg(not(test))]\nuse c::d;\n\
                    #[cfg(all(test, unix))]\nmod m {\n}\n";
        assert_eq!(outline(text).test_lines, [(2, 3), (6, 8)]);
        assert!(outline("#![cfg(test)]\nfn f() {}\n").all_test);
    }
}
