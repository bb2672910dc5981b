//! `debug_fields!`: implements `Debug` for types whose fields cannot all be shown.
//!
//! `#[derive(Debug)]` needs `Debug` for every field. Closures and trait objects such as drivers do
//! not implement `Debug`, and a machine's lock and word types need not. Most crates above this one
//! use the macro.

/// Implements `Debug` for a type, showing only the named fields. The type may have a lifetime and a
/// parameter with a bound: `debug_fields!(Batch<'_, M: Machine>, limits)`.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_fields {
    (
        $name:ident $(<$($lifetime:lifetime)? $(,)? $($param:ident $(: $bound:ident)?)?>)?
        $(, $field:ident)*
    ) => {
        impl $($(<$param $(: $bound)?>)?)? ::core::fmt::Debug
            for $name $(<$($lifetime,)? $($param)?>)?
        {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(::core::stringify!($name))
                    $(.field(::core::stringify!($field), &self.$field))*
                    .finish_non_exhaustive()
            }
        }
    };
}
