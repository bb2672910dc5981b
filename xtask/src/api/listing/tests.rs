//! Listings of crates that are strings.

use super::*;

fn listing(files: &[(&str, &str)]) -> String {
    let file = |name: &str| Some(files.iter().find(|(path, _)| *path == name)?.1.to_owned());
    of(&CrateTree::read(&file).unwrap())
}

#[test]
fn a_type_has_its_public_fields_methods_and_traits() {
    let text = "/// A.\n#[derive(Debug, Clone)]\n#[non_exhaustive]\npub struct A<T: Send> { pub x: u8, y: T }\n\
                impl<T: Send> A<T> {\n    pub fn f(\n        &self, // why\n        mut n: u32,\n    ) -> u8 { 0 }\n    fn g() {}\n}\n\
                impl<T: Send> Drop for A<T> { fn drop(&mut self) {} }\nstruct B;\n\
                trait Private {}\nimpl<T: Send> Private for A<T> {}";
    let expected = "A: struct A<T: Send> #[non_exhaustive]\n\
                    A: field x: u8\n\
                    A: fn f(&self, n: u32) -> u8 in impl<T: Send> A<T>\n\
                    A: impl Clone\n\
                    A: impl Debug\n\
                    A: impl<T: Send> Drop for A<T>\n";
    assert_eq!(listing(&[("lib.rs", text)]), expected);
}

#[test]
fn what_is_reexported_is_listed_by_its_public_name() {
    let files = [
        (
            "lib.rs",
            "mod a; #[cfg(feature = \"x\")] pub use a::{A as B, f}; pub use other::C; pub use a::m;",
        ),
        (
            "a.rs",
            "pub enum A { One, Two(u8) } pub fn f() {} pub fn g() {} pub mod m { pub fn h() {} }",
        ),
    ];
    let expected = "B: enum A if feature = \"x\"\n\
                    B: variant One if feature = \"x\"\n\
                    B: variant Two(u8) if feature = \"x\"\n\
                    C: use other::C\n\
                    f: fn f() if feature = \"x\"\n\
                    m: mod\nm::h: fn h()\n";
    assert_eq!(listing(&files), expected);
}

#[test]
fn a_public_module_has_its_items_below_it() {
    let text =
        "pub mod m { pub const N: u8 = 1; pub trait T: Send { fn f(&self); fn g(&self) {} } }";
    let expected = "m: mod\n\
                    m::N: const N: u8\n\
                    m::T: trait T: Send\n\
                    m::T: fn f(&self)\n\
                    m::T: fn g(&self) { .. }\n";
    assert_eq!(listing(&[("lib.rs", text)]), expected);
}

#[test]
fn methods_in_other_files_belong_to_the_type_that_they_name() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::A;"),
        ("a.rs", "pub struct A;"),
        ("b.rs", "use super::A; struct S; impl A { pub fn f() {} } impl S { pub fn g() {} }"),
    ];
    assert_eq!(listing(&files), "A: struct A\nA: fn f()\n");
}
