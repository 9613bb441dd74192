//! Resource quantities (`100m`, `1.5Gi`, `2e3`) as exact numbers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const NANOS: i128 = 1_000_000_000;

/// An amount in billionths of its unit (cores, bytes, items). Finer fractions are rounded away from zero, as in the
/// API's type, so that a tiny request never becomes zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Amount(i128);

/// The text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity (a number with an optional unit, such as 100m, 2, 1.5Gi or 1e3)")]
pub struct ParseQuantityError(String);

impl Amount {
    /// Zero.
    pub const ZERO: Amount = Amount(0);

    /// A whole number of units.
    pub const fn from_units(units: i64) -> Self {
        Amount(units as i128 * NANOS)
    }

    /// Parses the API's notation: a decimal number, then nothing, one of `n u m k M G T P E`, one of `Ki Mi Gi Ti Pi
    /// Ei`, or an exponent of ten. A number that is too large becomes the largest amount.
    ///
    /// # Errors
    /// [`ParseQuantityError`] if the text has another form.
    pub fn parse(text: &str) -> Result<Self, ParseQuantityError> {
        parse(text).map(Amount).ok_or_else(|| ParseQuantityError(text.to_owned()))
    }

    /// Parses a quantity of an API object.
    ///
    /// # Errors
    /// [`ParseQuantityError`], as for [`parse`](Self::parse).
    pub fn of(quantity: &Quantity) -> Result<Self, ParseQuantityError> {
        Amount::parse(&quantity.0)
    }

    /// The amount in billionths.
    pub const fn nanos(self) -> i128 {
        self.0
    }

    /// The sum, at most the largest amount.
    pub const fn plus(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0))
    }

    /// The amount in whole units, rounded up.
    pub fn units(self) -> i64 {
        clamp(ceil_div(self.0, NANOS))
    }

    /// The amount in thousandths, rounded up: the unit of CPU.
    pub fn millis(self) -> i64 {
        clamp(ceil_div(self.0, NANOS / 1000))
    }

    /// The amount in units of `divisor`, rounded up; in whole units if the divisor is zero.
    pub fn divided_by(self, divisor: Amount) -> i64 {
        if divisor.0 == 0 { self.units() } else { clamp(ceil_div(self.0, divisor.0)) }
    }

    /// Whether the amount is negative.
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }
}

fn parse(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
    let (number, suffix) = digits.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let scale = Scale::parse(suffix)?;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    // Further digits are finer than a billionth, or beyond the largest amount.
    let (kept, rest) = digits.split_at(digits.len().min(if scale.factor == 1 { 37 } else { 19 }));
    let finer = i128::from(rest.bytes().any(|digit| digit != b'0'));
    let mantissa: i128 = if kept.is_empty() { 0 } else { kept.parse::<i128>().ok()? + finer };
    let tens = scale.tens + 9 + i32::try_from(rest.len()).ok()? - i32::try_from(fraction.len()).ok()?;
    let scaled = mantissa.checked_mul(scale.factor).unwrap_or(i128::MAX);
    let value = match u32::try_from(tens) {
        Ok(up) => 10i128.checked_pow(up).and_then(|factor| scaled.checked_mul(factor)).unwrap_or(i128::MAX),
        Err(_) => 10i128.checked_pow(tens.unsigned_abs()).map_or(i128::from(scaled > 0), |by| ceil_div(scaled, by)),
    };
    let value = if mantissa == 0 { 0 } else { value };
    Some(if negative { -value } else { value })
}

/// The unit of a number: a factor and a power of ten.
struct Scale {
    factor: i128,
    tens: i32,
}

impl Scale {
    fn parse(suffix: &str) -> Option<Scale> {
        let (power, tens) = match suffix {
            "" => (0, 0),
            "n" => (0, -9),
            "u" => (0, -6),
            "m" => (0, -3),
            "k" => (0, 3),
            "M" => (0, 6),
            "G" => (0, 9),
            "T" => (0, 12),
            "P" => (0, 15),
            "E" => (0, 18),
            "Ki" => (10, 0),
            "Mi" => (20, 0),
            "Gi" => (30, 0),
            "Ti" => (40, 0),
            "Pi" => (50, 0),
            "Ei" => (60, 0),
            _ => (0, suffix.strip_prefix(['e', 'E'])?.parse::<i16>().ok()?.into()),
        };
        Some(Scale { factor: 1 << power, tens })
    }
}

/// Divides and rounds positive amounts up and negative amounts down.
fn ceil_div(value: i128, by: i128) -> i128 {
    let quotient = value / by;
    if value % by == 0 { quotient } else { quotient + (value.signum() * by.signum()) }
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notation_gives_its_number() {
        let cases = [
            ("0", 0, 0),
            ("1", 1, 1000),
            ("+3", 3, 3000),
            ("-2", -2, -2000),
            ("100m", 1, 100),
            ("0.5", 1, 500),
            (".25", 1, 250),
            ("1.", 1, 1000),
            ("1500m", 2, 1500),
            ("1u", 1, 1),
            ("1n", 1, 1),
            ("0.0000000001", 1, 1),
            ("2k", 2000, 2_000_000),
            ("1Ki", 1024, 1_024_000),
            ("1.5Gi", 1_610_612_736, 1_610_612_736_000),
            ("1e3", 1000, 1_000_000),
            ("1E3", 1000, 1_000_000),
            ("12E-1", 2, 1200),
            ("3E", 3_000_000_000_000_000_000, i64::MAX),
            ("1e300", i64::MAX, i64::MAX),
            ("0e300", 0, 0),
            ("1e-300", 1, 1),
            ("2.00000000000000000000000000000000000000000000", 2, 2000),
            ("1.00000000000000000000000000000000000000000001", 2, 1001),
            ("1.11111111111111111111111111111111111111111111Ki", 1138, 1_137_778),
            ("0.00000000000000000000000000000000000000001e44", 1000, 1_000_000),
            ("123456789012345678901234567890123456789012e-40", 13, 12_346),
            ("123456789012345678901234567890123456789012", i64::MAX, i64::MAX),
        ];
        for (text, units, millis) in cases {
            let amount = Amount::parse(text).unwrap();
            assert_eq!((amount.units(), amount.millis()), (units, millis), "{text}");
        }
    }

    #[test]
    fn other_text_is_no_quantity() {
        for text in ["", "m", "-", "1.2.3", "1 Gi", "1gi", "1K", "1e", "1ee3", "0x10", "ten", "1Mib"] {
            assert_eq!(Amount::parse(text), Err(ParseQuantityError(text.into())));
        }
    }

    #[test]
    fn a_division_rounds_up() {
        let parse = |text| Amount::parse(text).unwrap();
        assert_eq!(parse("64Mi").divided_by(parse("1Mi")), 64);
        assert_eq!(parse("64.1Mi").divided_by(parse("1Mi")), 65);
        assert_eq!(parse("250m").divided_by(parse("1m")), 250);
        assert_eq!(parse("250m").divided_by(Amount::ZERO), 1);
    }
}
