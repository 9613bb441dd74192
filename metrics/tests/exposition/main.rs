//! The exposition as a scraper sees it, in both formats.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, but do not look like it")]

mod controllers;
mod counted;
mod form;
mod scrape;
mod touch;

use podwright_metrics::{Format, Metrics};
use scrape::{Scrape, scrape};

const FORMATS: [Format; 2] = [Format::Classic, Format::OpenMetrics];

fn scraped(metrics: &Metrics, format: Format) -> Scrape {
    scrape(&metrics.encode(format), format)
}
