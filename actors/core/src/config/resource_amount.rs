//! Sums of quantities, formatted as the API formats them.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::Amount;

/// An amount with its family of suffixes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceAmount {
    amount: Amount,
    binary: bool,
}

const NANO: i128 = 1_000_000_000;
const BINARY: [(&str, u32); 6] = [("Ei", 6), ("Pi", 5), ("Ti", 4), ("Gi", 3), ("Mi", 2), ("Ki", 1)];
/// A suffix and its power of ten, in billionths.
const DECIMAL: [(&str, u32); 9] =
    [("E", 27), ("P", 24), ("T", 21), ("G", 18), ("M", 15), ("k", 12), ("m", 6), ("u", 3), ("n", 0)];

impl ResourceAmount {
    /// Parses a quantity; `None` if it is not valid.
    pub(crate) fn parse(quantity: &Quantity) -> Option<ResourceAmount> {
        Some(ResourceAmount { amount: Amount::of(quantity).ok()?, binary: quantity.0.ends_with('i') })
    }

    /// Parses a quantity and prints it with binary suffixes.
    pub(crate) fn binary(quantity: &Quantity) -> Option<ResourceAmount> {
        Some(ResourceAmount { binary: true, ..ResourceAmount::parse(quantity)? })
    }

    /// The amount.
    pub(super) fn amount(self) -> Amount {
        self.amount
    }

    /// Whether the amount is zero.
    pub(super) fn is_zero(self) -> bool {
        self.amount == Amount::ZERO
    }

    /// The sum. A zero takes the suffixes of the other side.
    pub(super) fn plus(self, other: ResourceAmount) -> ResourceAmount {
        let binary = if self.is_zero() { other.binary } else { self.binary };
        ResourceAmount { amount: self.amount.plus(other.amount), binary }
    }

    /// The larger amount.
    pub(super) fn max(self, other: ResourceAmount) -> ResourceAmount {
        if other.amount > self.amount { other } else { self }
    }

    /// Whether both amounts are equal, whatever their suffixes.
    pub(super) fn same(self, other: ResourceAmount) -> bool {
        self.amount == other.amount
    }

    /// The canonical text: the largest suffix that leaves no fraction.
    pub(crate) fn to_quantity(self) -> Quantity {
        let nanos = self.amount.nanos();
        let whole = nanos / NANO;
        if nanos % NANO == 0 && (self.binary || whole == 0) {
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
            if power < 9 && nanos % NANO == 0 {
                return Quantity(whole.to_string());
            }
            if nanos % unit == 0 {
                return Quantity(format!("{}{suffix}", nanos / unit));
            }
        }
        // The last unit is one billionth, which divides every amount.
        Quantity(whole.to_string())
    }
}

/// The canonical text of a quantity, as the kubelet prints it: `1024Ki` is `1Mi`. A text that is no quantity stays as it is.
pub fn canonical(quantity: &Quantity) -> String {
    ResourceAmount::parse(quantity).map_or_else(|| quantity.0.clone(), |amount| amount.to_quantity().0)
}

/// A whole number with the largest binary suffix that leaves no fraction: 2048 is `2Ki`, 2000 is `2000`. Below 1024 the suffix is
/// decimal: 1000 is `1k`.
pub fn binary(number: u64) -> String {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    ResourceAmount { amount: Amount::from_units(number), binary: number >= 1024 }.to_quantity().0
}

/// A whole number with the largest decimal suffix that leaves no fraction: 2000 is `2k`, 1024 is `1024`.
pub fn decimal(number: u64) -> String {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    ResourceAmount { amount: Amount::from_units(number), binary: false }.to_quantity().0
}

/// What a pod requests of a resource, for users: `2` or `500m` of `cpu`, `1` of `pods`, and `1Gi` of every other resource. `amount`
/// has the unit of admission: CPU in thousandths of a core, pods as a number, everything else in bytes.
pub fn of_resource(resource: &str, amount: i64) -> String {
    match resource {
        "cpu" => canonical(&Quantity(format!("{amount}m"))),
        "pods" => amount.to_string(),
        _ => binary(u64::try_from(amount).unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(text: &str) -> ResourceAmount {
        ResourceAmount::parse(&Quantity(text.into())).unwrap()
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
            ("1Ei", "1Ei"),
            ("1e-3", "1m"),
        ] {
            assert_eq!(total(from).to_quantity().0, to, "{from}");
        }
    }

    #[test]
    fn numbers_have_the_largest_suffix_without_a_fraction() {
        for (number, in_binary, in_decimal) in [
            (0, "0", "0"),
            (1000, "1k", "1k"),
            (2048, "2Ki", "2048"),
            (2000, "2000", "2k"),
            (5 << 30, "5Gi", "5368709120"),
        ] {
            assert_eq!((binary(number).as_str(), decimal(number).as_str()), (in_binary, in_decimal));
        }
        assert_eq!(canonical(&Quantity("1024Ki".into())), "1Mi");
        assert_eq!(canonical(&Quantity("much".into())), "much");
    }

    #[test]
    fn amounts_of_admission_become_quantities() {
        for (resource, amount, text) in [
            ("cpu", 2000, "2"),
            ("cpu", 500, "500m"),
            ("cpu", 1500, "1500m"),
            ("memory", 1 << 30, "1Gi"),
            ("memory", 1000, "1k"),
            ("ephemeral-storage", 3 << 20, "3Mi"),
            ("hugepages-2Mi", 4 << 20, "4Mi"),
            ("pods", 1000, "1000"),
        ] {
            assert_eq!(of_resource(resource, amount), text, "{amount} of {resource}");
        }
    }

    #[test]
    fn sums_keep_the_first_family_of_suffixes() {
        assert_eq!(total("100m").plus(total("0.9")).to_quantity().0, "1");
        assert_eq!(total("64Mi").plus(total("1Mi")).to_quantity().0, "65Mi");
        assert_eq!(total("0").plus(total("1Gi")).to_quantity().0, "1Gi");
    }
}
