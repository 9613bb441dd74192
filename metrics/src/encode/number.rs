//! Formats numbers as Go programs do.

/// Formats a number in the shortest form that parses back to the same value: plain from 0.0001 to below a million, else
/// with an exponent of at least two digits. This is Go's format `g`, which the kubelet uses for every value and bound.
pub(super) fn shortest(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("the format of a finite float has an exponent");
    let exponent: i32 = exponent.parse().expect("and the exponent is an integer");
    if (-4..6).contains(&exponent) {
        // Unlike the debug form, this form never has an exponent or a trailing `.0`.
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_form_of_a_go_client() {
        let table = [
            (0.0, "0"),
            (1.0, "1"),
            (-1.0, "-1"),
            (0.005, "0.005"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (0.00001234, "1.234e-05"),
            (2.5, "2.5"),
            (3600.0, "3600"),
            (298.0232238769531, "298.0232238769531"),
            (100_000.0, "100000"),
            (999_999.0, "999999"),
            (1_000_000.0, "1e+06"),
            (1_763_712_345.0, "1.763712345e+09"),
            (1_763_712_345.25, "1.76371234525e+09"),
            (1e100, "1e+100"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ];
        for (value, text) in table {
            assert_eq!(shortest(value), text);
        }
    }
}
