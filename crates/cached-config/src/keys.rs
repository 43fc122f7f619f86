//! The keys of a table, each defined in one place: its name, type, default, range, and the field of
//! the engine's configuration that it sets.

/// Defines a table of a configuration file, with one line for each key.
///
/// `over` names the engine's configuration, and the value of it that holds the defaults. A line has
/// the form `key: Type = unit(field), in range;`: the key has the default of the field and sets it,
/// converted by a [unit](units). A key that does not set a field by itself is `own(default)`, or
/// `made(function)`, a function of the configuration; `or default` states a default other than the
/// field's; `in range` is the range that `check_ranges` checks. `if "feature"` marks a
/// configuration that exists only in builds with this feature; each of its keys then states its
/// default.
///
/// Besides the table, which serde reads and writes, the macro defines its `Default`, its `From` the
/// engine's configuration, `apply`, which sets the fields, and `check_ranges`.
#[macro_export]
macro_rules! config_keys {
    (@default $config:ident $unit:ident($($field:tt)*) or $value:expr) => { $value };
    (@default $config:ident $unit:ident($($field:tt)*)) => { $crate::config_keys!(@of $config $unit($($field)*)) };
    (@of $config:ident own($value:expr)) => { $value };
    (@of $config:ident made($make:expr)) => { $make($config) };
    (@of $config:ident $unit:ident($($field:ident).+)) => { $crate::units::$unit::of(&$config.$($field).+) };
    (@set $config:ident $value:expr, own($default:expr)) => {};
    (@set $config:ident $value:expr, made($make:expr)) => {};
    (@set $config:ident $value:expr, $unit:ident($($field:ident).+)) => {
        $config.$($field).+ = $crate::units::$unit::to(&$value);
    };
    (
        $(#[$attribute:meta])*
        $visible:vis struct $Table:ident over $Config:ty $(= $initial:expr)? $(, if $feature:literal)?;
        $(
            $(#[$key_attribute:meta])*
            $key_visible:vis $key:ident: $Key:ty = $unit:ident($($field:tt)*) $(or $default:expr)? $(, in $range:expr)?;
        )*
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields, expecting = "a table")]
        $visible struct $Table {
            $($(#[$key_attribute])* $key_visible $key: $Key,)*
        }

        impl Default for $Table {
            fn default() -> Self {
                $(let config = &$initial;)?
                $Table {
                    $($key: $crate::config_keys!(@default config $unit($($field)*) $(or $default)?),)*
                }
            }
        }

        $(#[cfg(feature = $feature)])?
        impl From<&$Config> for $Table {
            fn from(config: &$Config) -> Self {
                $Table { $($key: $crate::config_keys!(@of config $unit($($field)*)),)* }
            }
        }

        impl $Table {
            /// Sets the fields of the engine's configuration that have keys.
            $(#[cfg(feature = $feature)])?
            $visible fn apply(&self, config: &mut $Config) {
                $($crate::config_keys!(@set config self.$key, $unit($($field)*));)*
            }

            /// Checks the keys that have a range; `table` is the name of the table.
            ///
            /// # Errors
            /// Returns the first key whose value is out of range.
            $visible fn check_ranges(&self, table: &str) -> Result<(), $crate::ConfigError> {
                let _ = table;
                $($($crate::within(&format!("{table}.{}", stringify!($key)), self.$key, $range)?;)?)*
                Ok(())
            }
        }
    };
}

/// Defines a struct with the default of each field beside it.
#[macro_export]
macro_rules! with_defaults {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $Struct:ident {
            $($(#[$field_attribute:meta])* $field_visible:vis $field:ident: $Field:ty = $default:expr,)*
        }
    ) => {
        $(#[$attribute])*
        $visible struct $Struct {
            $($(#[$field_attribute])* $field_visible $field: $Field,)*
        }

        impl Default for $Struct {
            fn default() -> Self {
                $Struct { $($field: $default,)* }
            }
        }
    };
}

/// Conversions between the value of a key (`of`) and that of a field (`to`).
pub mod units {
    /// The values of the key and of the field are equal.
    pub mod same {
        /// Returns the key's value.
        pub fn of<T: Clone>(field: &T) -> T {
            field.clone()
        }

        pub use of as to;
    }

    /// A number of bytes.
    pub mod size {
        use crate::Size;

        /// Returns the key's value.
        pub fn of<T: Copy + Into<Size>>(field: &T) -> Size {
            (*field).into()
        }

        /// Returns the field's value.
        pub fn to<T: From<Size>>(key: &Size) -> T {
            (*key).into()
        }
    }

    macro_rules! times {
        ($($(#[$doc:meta])* $unit:ident $units_of:expr, $from_units:ident;)*) => {
            $($(#[$doc])*
            pub mod $unit {
                use std::time::Duration;

                /// Returns the key's value.
                pub fn of(field: &Duration) -> u64 {
                    let units_of: fn(&Duration) -> u64 = $units_of;
                    units_of(field)
                }

                /// Returns the field's value.
                pub fn to(key: &u64) -> Duration {
                    Duration::$from_units(*key)
                }
            })*
        };
    }
    times! {
        /// A time in seconds.
        secs Duration::as_secs, from_secs;
        /// A time in milliseconds.
        millis |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX), from_millis;
        /// A time in microseconds.
        micros |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX), from_micros;
    }

    /// A count, whose field is a `usize`.
    pub mod count {
        /// Returns the key's value.
        pub fn of(field: &usize) -> u32 {
            u32::try_from(*field).unwrap_or(u32::MAX)
        }

        /// Returns the field's value.
        pub fn to(key: &u32) -> usize {
            *key as usize
        }
    }

    /// A text, a path or a number that is empty, or 0, if the field is `None`.
    pub mod optional {
        /// Returns the key's value.
        pub fn of<T: Clone + Default>(field: &Option<T>) -> T {
            field.clone().unwrap_or_default()
        }

        /// Returns the field's value.
        pub fn to<T: Clone + Default + PartialEq>(key: &T) -> Option<T> {
            Some(key).filter(|key| **key != T::default()).cloned()
        }
    }

    /// A name of the field's value.
    pub mod name {
        /// Returns the key's value.
        pub fn of<T: Copy, Name: From<T>>(field: &T) -> Name {
            (*field).into()
        }

        pub use of as to;
    }
}
