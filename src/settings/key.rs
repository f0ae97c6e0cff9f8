//! What a setting is, and the macro that declares a struct of settings together with the table that describes them.

use secrecy::{ExposeSecret, SecretString};

/// One setting, as packaging and documents print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// cloud-api-adaptor's environment variable, which is also the file's name.
    pub name: &'static str,
    /// What it means: one paragraph of plain text.
    pub doc: &'static str,
    /// How its value is read.
    pub kind: Kind,
    /// The value in force where none is given; empty where there is none.
    pub default: &'static str,
    /// cloud-api-adaptor does not start without it.
    pub required: bool,
    /// Deletion depends on it: two different values for it stop the provider's deletions.
    pub concerns_deletion: bool,
    /// The operator alone reads it, and cloud-api-adaptor does not.
    pub operator_only: bool,
}

/// How a setting's value is read, and whether it may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// `1` or `true`, in upper or lower case, is true, anything else false.
    Boolean,
    /// Tags `KEY=VALUE`, separated by commas.
    Tags,
    /// Text that is never shown. It belongs into the `Secret`, and everything else into the `ConfigMap`.
    Secret,
}

impl Key {
    /// A setting with this kind of value, no default, and nothing that depends on it.
    pub const fn new(name: &'static str, doc: &'static str, kind: Kind) -> Self {
        Self {
            name,
            doc: doc.trim_ascii(),
            kind,
            default: "",
            required: false,
            concerns_deletion: false,
            operator_only: false,
        }
    }

    /// A setting that is any text.
    pub const fn text(name: &'static str, doc: &'static str) -> Self {
        Self::new(name, doc, Kind::Text)
    }

    /// A setting that is on or off.
    pub const fn switch(name: &'static str, doc: &'static str) -> Self {
        Self::new(name, doc, Kind::Boolean)
    }

    /// A setting that is never shown.
    pub const fn secret(name: &'static str, doc: &'static str) -> Self {
        Self::new(name, doc, Kind::Secret)
    }

    /// The same as a list of tags `KEY=VALUE`.
    #[must_use]
    pub const fn tags(mut self) -> Self {
        self.kind = Kind::Tags;
        self
    }

    /// The same with this default.
    #[must_use]
    pub const fn default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    /// The same, and cloud-api-adaptor does not start without it.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// The same, and deletion depends on it.
    #[must_use]
    pub const fn concerns_deletion(mut self) -> Self {
        self.concerns_deletion = true;
        self
    }

    /// The same, and cloud-api-adaptor does not read it.
    #[must_use]
    pub const fn operator_only(mut self) -> Self {
        self.operator_only = true;
        self
    }
}

/// A type that a setting can have. Reading never fails: a setting that only the creation of a VM needs must not stop a deletion.
pub(crate) trait Value {
    const KIND: Kind;

    /// `given` is not empty; without it the key's default counts.
    fn read(key: &Key, given: Option<&SecretString>) -> Self;
}

impl Value for String {
    const KIND: Kind = Kind::Text;

    fn read(key: &Key, given: Option<&SecretString>) -> Self {
        given.map_or(key.default, ExposeSecret::expose_secret).to_owned()
    }
}

impl Value for Option<String> {
    const KIND: Kind = Kind::Text;

    fn read(_: &Key, given: Option<&SecretString>) -> Self {
        given.map(|text| text.expose_secret().to_owned())
    }
}

impl Value for Option<SecretString> {
    const KIND: Kind = Kind::Secret;

    fn read(_: &Key, given: Option<&SecretString>) -> Self {
        given.cloned()
    }
}

impl Value for bool {
    const KIND: Kind = Kind::Boolean;

    fn read(key: &Key, given: Option<&SecretString>) -> Self {
        is_true(given.map_or(key.default, ExposeSecret::expose_secret))
    }
}

/// Whether the value of a switch turns it on.
pub(crate) fn is_true(text: &str) -> bool {
    text == "1" || text.eq_ignore_ascii_case("true")
}

/// Declares a struct of settings, its table `KEYS` and the function that reads it. A field's comment is the setting's
/// documentation; its type says how the value is read.
///
/// ```text
/// settings! {
///     /// What is set.
///     pub struct Example {
///         /// The pool of the pod VMs.
///         pool: String = EXAMPLE_POOL.default("default").concerns_deletion(),
///     }
/// }
/// ```
macro_rules! settings {
    (
        $(#[$about:meta])*
        $vis:vis struct $group:ident {
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $type:ty = $name:ident $(.$option:ident($($argument:literal)?))*
            ),+ $(,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        $vis struct $group {
            $(
                #[doc = concat!("`", stringify!($name), "`:", $($doc, "\n"),+)]
                $vis $field: $type,
            )+
        }

        impl $group {
            /// Every setting of this group, in the order of the fields.
            $vis const KEYS: &'static [$crate::settings::Key] =
                &[$($crate::settings::key::settings!(@key $type, $name, [$($doc),+] $(.$option($($argument)?))*)),+];

            /// Reads every field.
            pub(crate) fn read(values: &$crate::settings::Values) -> Self {
                Self {$(
                    $field: <$type as $crate::settings::key::Value>::read(
                        const { &$crate::settings::key::settings!(
                            @key $type, $name, [$($doc),+] $(.$option($($argument)?))*
                        ) },
                        values.get(stringify!($name)),
                    )
                ),+}
            }
        }
    };
    (@key $type:ty, $name:ident, [$($doc:literal),+] $(.$option:ident($($argument:literal)?))*) => {
        $crate::settings::Key::new(
            stringify!($name),
            concat!($($doc),+),
            <$type as $crate::settings::key::Value>::KIND,
        )$(.$option($($argument)?))*
    };
}
pub(crate) use settings;
