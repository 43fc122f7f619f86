//! Enums whose variants have numbers on the wire.

/// Defines an enum with the number of each variant, and its function `of`, which returns the variant
/// with a number.
macro_rules! numbered {
    ($(#[$doc:meta])* pub enum $name:ident {
        $($(#[$about:meta])* $variant:ident = $number:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$about])* $variant = $number,)*
        }

        impl $name {
            #[inline]
            fn of(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use numbered;
