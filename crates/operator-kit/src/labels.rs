//! The labels of an enum *(no client)*.

/// Gives an enum the constant `ALL` and the method `as_str`, which returns the label of each variant. The compiler reports a variant
/// that is missing here, so `ALL` has every one. A variant with fields needs a value for each of them, which it has in `ALL`. The
/// enum must be `Copy`.
///
/// ```
/// use std::time::Duration;
///
/// #[derive(Clone, Copy)]
/// pub enum Answer {
///     Done,
///     Throttled { retry_after: Duration },
/// }
///
/// operator_kit::labels! {
///     /// The metric label.
///     pub Answer {
///         Done => "done",
///         Throttled { retry_after: Duration::ZERO } => "throttled",
///     }
/// }
///
/// assert_eq!(Answer::ALL.map(Answer::as_str), ["done", "throttled"]);
/// ```
#[macro_export]
macro_rules! labels {
    (
        $(#[doc = $doc:literal])+
        $visibility:vis $labelled:ident {
            $($variant:ident $({ $($field:ident: $example:expr),+ })? => $label:literal),+ $(,)?
        }
    ) => {
        impl $labelled {
            /// Every variant.
            $visibility const ALL: [Self; <[&str]>::len(&[$($label),+])] =
                [$(Self::$variant $({ $($field: $example),+ })?),+];

            $(#[doc = $doc])+
            $visibility const fn as_str(self) -> &'static str {
                match self { $(Self::$variant $({ $($field: _),+ })? => $label),+ }
            }
        }
    };
}
