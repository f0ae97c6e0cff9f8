//! Quantities as Kubernetes writes them: `1500m`, `0.5`, `4Gi`, `12e3`.

use std::{fmt, iter::Sum, ops::Add, str::FromStr};

/// Kubernetes' largest quantity; it cuts larger ones to this.
const MOST: u128 = i64::MAX as u128;

/// Thousandths in one.
const MILLI: u128 = 1000;

/// More zeros than any amount has.
const MOST_EXPONENT: i32 = 60;

/// An amount of a resource in thousandths, never negative. The API server itself rounds resources up to thousandths.
/// Sums saturate far beyond what Kubernetes can write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(u128);

/// Why a text is no quantity that a container can request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuantity {
    /// It is none.
    #[error("is not a quantity, such as 500m, 2 or 4Gi")]
    Malformed,
    /// It is below zero.
    #[error("is negative")]
    Negative,
}

impl Amount {
    /// How many whole `units` hold this amount; at most the largest signed number of 64 bits.
    ///
    /// # Panics
    ///
    /// If `units` is zero.
    pub fn in_units_of(self, units: u64) -> u64 {
        let whole = self.0.div_ceil(u128::from(units) * MILLI);
        // Below 2^63.
        u64::try_from(whole.min(MOST)).unwrap_or(u64::MAX)
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The digits times 2^`twos` times 10^`tens`, rounded up to thousandths.
    fn scaled(digits: u128, twos: u32, tens: i32) -> Self {
        let digits = digits.saturating_mul(1 << twos);
        let power = |exponent: u32| 10_u128.saturating_pow(exponent);
        let thousandths = match tens + 3 {
            up @ 0.. => digits.saturating_mul(power(up.unsigned_abs())),
            down => digits.div_ceil(power(down.unsigned_abs())),
        };
        Self(thousandths.min(MOST * MILLI))
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Add::add)
    }
}

/// A whole number, or thousandths with the suffix `m`; what [`FromStr`] reads.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u64::try_from(self.0) {
            // Nearly all amounts. Arithmetic of 128 bits takes several times as long.
            Ok(small) if small.is_multiple_of(1000) => (small / 1000).fmt(f),
            Ok(small) => write!(f, "{small}m"),
            Err(_) if self.0.is_multiple_of(MILLI) => (self.0 / MILLI).fmt(f),
            Err(_) => write!(f, "{}m", self.0),
        }
    }
}

impl FromStr for Amount {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(InvalidQuantity::Malformed);
        }
        let (twos, tens) = scale(suffix).ok_or(InvalidQuantity::Malformed)?;
        let (digits, fraction_digits) = digits(whole, fraction);
        match Self::scaled(digits, twos, tens - fraction_digits) {
            amount if negative && !amount.is_zero() => Err(InvalidQuantity::Negative),
            amount => Ok(amount),
        }
    }
}

/// The digits of a number, and how many of them are behind the point. More than 20 behind it count as one more if any of
/// them is not zero: they can only matter for rounding up.
fn digits(whole: &str, fraction: &str) -> (u128, i32) {
    const KEPT: usize = 20;
    let append = |number: u128, digit: u8| number.saturating_mul(10).saturating_add(u128::from(digit - b'0'));
    let fraction = fraction.trim_end_matches('0');
    // Nearly all quantities. Arithmetic of 128 bits takes several times as long.
    if fraction.is_empty()
        && let Ok(small) = whole.parse::<u64>()
    {
        return (small.into(), 0);
    }
    let (kept, rest) = fraction.split_at(fraction.len().min(KEPT));
    let sticky = if rest.is_empty() { None } else { Some(b'1') };
    let behind = kept.bytes().chain(sticky);
    let digits = whole.bytes().chain(behind.clone()).fold(0, append);
    (digits, behind.fold(0, |count, _| count + 1))
}

/// The powers of two and of ten of a suffix.
fn scale(suffix: &str) -> Option<(u32, i32)> {
    let scale = match suffix {
        "" => (0, 0),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        exponent => {
            let exponent = exponent.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
            (0, exponent.clamp(-MOST_EXPONENT, MOST_EXPONENT))
        }
    };
    Some(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thousandths(text: &str) -> u128 {
        text.parse::<Amount>().unwrap_or_else(|error| panic!("{text} {error}")).0
    }

    #[test]
    fn every_notation_is_read_and_rounded_up_to_thousandths() {
        for (text, expected) in [
            ("0", 0),
            ("-0", 0),
            ("1", 1000),
            ("+1", 1000),
            (".5", 500),
            ("5.", 5000),
            ("0.0001", 1),
            ("1500m", 1500),
            ("1500001u", 1501),
            ("1n", 1),
            ("12e3", 12_000_000),
            ("12E-3", 12),
            ("1e-30", 1),
            ("2k", 2_000_000),
            ("1Ki", 1_024_000),
            ("0.5Gi", 536_870_912_000),
            ("1.00000000000000000000000000000001", 1001),
            ("1.000000000000000000000000000000000", 1000),
        ] {
            assert_eq!(thousandths(text), expected, "{text}");
        }
    }

    #[test]
    fn amounts_beyond_64_bits_saturate() {
        let most = u128::from(i64::MAX.unsigned_abs()) * 1000;
        for text in ["9223372036854775807", "9223372036854775808", "8Ei", "1e50", "1E999999", &"9".repeat(99)]
        {
            assert_eq!(thousandths(text), most, "{text}");
        }
        let sum: Amount = ["8Ei", "8Ei"].iter().map(|text| text.parse::<Amount>().unwrap()).sum();
        assert_eq!(sum.in_units_of(1), i64::MAX.unsigned_abs());
        assert_eq!(Amount(u128::MAX) + Amount(1), Amount(u128::MAX));
    }

    #[test]
    fn malformed_and_negative_quantities_are_refused() {
        for text in
            ["", ".", "m", "1.2.3", "1 Gi", "1gi", "1KB", "1e", "1e1.5", "abc", "٣", "--1", "1e99999999999"]
        {
            assert_eq!(text.parse::<Amount>(), Err(InvalidQuantity::Malformed), "{text}");
        }
        for text in ["-1", "-1m", "-4Gi"] {
            assert_eq!(text.parse::<Amount>(), Err(InvalidQuantity::Negative), "{text}");
        }
    }

    #[test]
    fn a_displayed_amount_parses_to_the_same_amount() {
        for amount in [0, 1, 999, 1000, 1001, 4_294_967_296_000, MOST * MILLI].map(Amount) {
            assert_eq!(amount.to_string().parse(), Ok(amount));
        }
    }

    #[test]
    fn units_are_rounded_up() {
        for (text, units, expected) in [
            ("0", 1, 0),
            ("1m", 1, 1),
            ("2", 1, 2),
            ("2001m", 1, 3),
            ("1Mi", 1 << 20, 1),
            ("1048577", 1 << 20, 2),
        ] {
            assert_eq!(text.parse::<Amount>().unwrap().in_units_of(units), expected, "{text}");
        }
    }
}
