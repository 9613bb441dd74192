//! The network of simulated pods: it answers the calls of probes and hooks without making them.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_ports::{GrpcHealth, GrpcTarget, HttpTarget, NetworkClient, NetworkError, TcpTarget};

use super::draw::Choice;
use super::runtime::SimulatedRuntimeState;
use super::table::pod_at;

/// Answers network calls for the pods of a [`SimulatedRuntime`](super::SimulatedRuntime). A call succeeds unless nothing runs
/// at the address, or the pod's `network-failures` apply to the call. A call to any other address succeeds without being
/// made: to the node's address, which pods with host network have too, or to a host that a probe names.
#[derive(Clone, Debug)]
pub struct SimulatedNetwork {
    shared: Arc<SimulatedRuntimeState>,
}

impl SimulatedNetwork {
    pub(super) fn new(shared: Arc<SimulatedRuntimeState>) -> Self {
        SimulatedNetwork { shared }
    }

    fn call(&self, host: &str) -> Result<(), NetworkError> {
        let Some(number) = host.parse::<Ipv4Addr>().ok().and_then(pod_at) else { return Ok(()) };
        let Some((uid, behaviour, call)) = self.shared.with(|table, _| table.call(number)) else {
            return Err(NetworkError::failed(format!("connection refused: nothing runs at {host}")));
        };
        let draw = self.shared.draws(&uid, "").of(Choice::NetworkFailure, call);
        if behaviour.network_failures.applies_to(call, draw) {
            return Err(NetworkError::failed("connection refused: simulated failure"));
        }
        Ok(())
    }
}

impl NetworkClient for SimulatedNetwork {
    fn http_get(&self, target: HttpTarget, _: Duration) -> BoxFuture<'_, Result<(u16, String), NetworkError>> {
        async move { self.call(&target.host).map(|()| (200, String::new())) }.boxed()
    }

    fn tcp_connect(&self, target: TcpTarget, _: Duration) -> BoxFuture<'_, Result<(), NetworkError>> {
        async move { self.call(&target.host) }.boxed()
    }

    fn grpc_check(&self, target: GrpcTarget, _: Duration) -> BoxFuture<'_, Result<GrpcHealth, NetworkError>> {
        async move { self.call(&target.host).map(|()| GrpcHealth::Serving) }.boxed()
    }
}
