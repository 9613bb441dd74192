//! Resource quantities, as far as sums and comparisons need them.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A quantity in billionths, with the family of suffixes it was written in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    nanos: i128,
    binary: bool,
}

const NANO: i128 = 1_000_000_000;
const BINARY: [(&str, u32); 6] = [("Ei", 6), ("Pi", 5), ("Ti", 4), ("Gi", 3), ("Mi", 2), ("Ki", 1)];
/// Suffix and power of ten, in billionths.
const DECIMAL: [(&str, u32); 9] =
    [("E", 27), ("P", 24), ("T", 21), ("G", 18), ("M", 15), ("k", 12), ("m", 6), ("u", 3), ("n", 0)];

impl Amount {
    /// Reads a quantity; `None` if it is not one. What is finer than a billionth is rounded up, as the API does.
    pub(super) fn parse(quantity: &Quantity) -> Option<Amount> {
        let text = quantity.0.trim();
        let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
            return Some(Amount {
                nanos: scaled(number, 9)?.checked_mul(1024i128.checked_pow(*power)?)?,
                binary: true,
            });
        }
        let power = match DECIMAL.iter().find(|(name, _)| *name == suffix) {
            Some((_, power)) => *power,
            None if suffix.is_empty() => 9,
            None => {
                let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
                u32::try_from(exponent.checked_add(9)?).ok()?
            }
        };
        Some(Amount { nanos: scaled(number, power)?, binary: false })
    }

    /// Whether it is nothing.
    pub(super) fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// The sum; nothing takes the suffixes of the other side.
    pub(super) fn plus(self, other: Amount) -> Amount {
        let binary = if self.is_zero() { other.binary } else { self.binary };
        Amount { nanos: self.nanos.saturating_add(other.nanos), binary }
    }

    /// The larger one.
    pub(super) fn max(self, other: Amount) -> Amount {
        if other.nanos > self.nanos { other } else { self }
    }

    /// Whether both are the same amount, however they are written.
    pub(super) fn same(self, other: Amount) -> bool {
        self.nanos == other.nanos
    }

    /// The canonical text: the largest suffix that leaves no fraction.
    pub(super) fn to_quantity(self) -> Quantity {
        let whole = self.nanos / NANO;
        if self.nanos % NANO == 0 && (self.binary || whole == 0) {
            for (suffix, power) in BINARY {
                let unit = 1024i128.pow(power);
                if whole != 0 && whole % unit == 0 {
                    return Quantity(format!("{}{suffix}", whole / unit));
                }
            }
            return Quantity(whole.to_string());
        }
        for (suffix, power) in DECIMAL {
            let unit = 10i128.pow(power);
            if power < 9 && self.nanos % NANO == 0 {
                return Quantity(whole.to_string());
            }
            if self.nanos % unit == 0 {
                return Quantity(format!("{}{suffix}", self.nanos / unit));
            }
        }
        // The last unit is one billionth, which divides everything.
        Quantity(whole.to_string())
    }
}

/// A decimal number times ten to the power; fractions of the result are rounded up.
fn scaled(number: &str, power: u32) -> Option<i128> {
    let (negative, digits) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value: i128 = 0;
    let mut rest = false;
    let padded = fraction.bytes().chain(std::iter::repeat(b'0')).take(power as usize);
    for digit in whole.bytes().chain(padded) {
        value = value.checked_mul(10)?.checked_add(i128::from(decimal(digit)?))?;
    }
    for digit in fraction.bytes().skip(power as usize) {
        rest |= decimal(digit)? != 0;
    }
    value += i128::from(rest);
    Some(if negative { -value } else { value })
}

fn decimal(digit: u8) -> Option<u8> {
    digit.is_ascii_digit().then(|| digit - b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Amount {
        Amount::parse(&Quantity(text.into())).unwrap()
    }

    #[test]
    fn quantities_become_canonical() {
        for (from, to) in [
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.1", "100m"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("2000000", "2M"),
            ("1e3", "1k"),
            ("0", "0"),
            ("1000Ki", "1000Ki"),
            ("900", "900"),
            ("100u", "100u"),
            ("12E", "12E"),
        ] {
            assert_eq!(amount(from).to_quantity().0, to, "{from}");
        }
    }

    #[test]
    fn sums_keep_the_first_family_of_suffixes() {
        assert_eq!(amount("100m").plus(amount("0.9")).to_quantity().0, "1");
        assert_eq!(amount("64Mi").plus(amount("1Mi")).to_quantity().0, "65Mi");
        assert_eq!(amount("0").plus(amount("1Gi")).to_quantity().0, "1Gi");
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "abc", "1.2.3", "1Zi", "m", "1e", "--1"] {
            assert!(Amount::parse(&Quantity(text.into())).is_none(), "{text}");
        }
    }
}
