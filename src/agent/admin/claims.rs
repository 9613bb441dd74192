//! Gives a DRA driver up.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::agent::view::NodeControl;
use podwright_http_server::MAX_ECHO_BYTES;
use podwright_model::ids::ClaimName;
use podwright_model::text::{error_chain, plain};

/// The driver to give up.
#[derive(Deserialize)]
pub(super) struct GiveUpQuery {
    driver: String,
}

/// Releases a claim without one of its drivers from now on.
pub(super) async fn give_up(
    State(control): State<NodeControl>,
    Path((namespace, name)): Path<(String, String)>,
    Query(GiveUpQuery { driver }): Query<GiveUpQuery>,
) -> Response {
    let Some(manager) = &control.claims else {
        return (StatusCode::NOT_FOUND, "this node holds no ResourceClaims\n").into_response();
    };
    let claim = ClaimName::new(&namespace, &name);
    let drivers = manager.read(|table| {
        let record = table.record(&claim);
        record.map(|record| record.drivers.keys().map(ToString::to_string).collect::<Vec<_>>())
    });
    let echo = |text: &str| plain(text, MAX_ECHO_BYTES).into_owned();
    match drivers {
        None => {
            let why = format!("this node does not hold ResourceClaim {}\n", echo(&claim.to_string()));
            return (StatusCode::NOT_FOUND, why).into_response();
        }
        Some(drivers) if !drivers.contains(&driver) => {
            let why = format!("ResourceClaim {claim} has no driver {:?}, but {}\n", echo(&driver), drivers.join(", "));
            return (StatusCode::NOT_FOUND, why).into_response();
        }
        Some(_) => {}
    }
    match manager.give_up(&claim, &driver.as_str().into()).await {
        Ok(()) => {
            format!("ResourceClaim {claim} is released without DRA driver {driver} from now on\n").into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", error_chain(&error))).into_response(),
    }
}
