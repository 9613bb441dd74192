//! Random lives are recorded in small rings and run again; damaged files are refused.

mod damage;
mod lives;
mod plans;
