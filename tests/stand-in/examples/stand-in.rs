//! The API server of the tests, to try the agent, a controller or kubectl against it by hand:
//! `cargo run --locked -p podwright-stand-in --example stand-in`
//!
//! It prints the path of the administrator's kubeconfig file and serves until Ctrl-C.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use podwright_stand_in::{Fault, Rule, StandIn, User};
use serde_json::json;

/// Serves the Kubernetes API from memory, until Ctrl-C.
#[derive(Debug, Parser)]
struct Options {
    /// The port on the loopback address. By default any free port.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// The file for the administrator's kubeconfig. By default a file in the directory for temporary files.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// A node that gets a kubeconfig with its own credential; may be given several times. The file has the name of the
    /// administrator's file and the name of the node.
    #[arg(long)]
    node: Vec<String>,
    /// A node to create at the start; may be given several times.
    #[arg(long)]
    create_node: Vec<String>,
    /// Requests without a credential have the rights of the administrator.
    #[arg(long)]
    anonymous_admin: bool,
    /// Milliseconds by which every request is delayed.
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
    /// The percentage of requests that are answered with 500.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    fail_percent: u8,
    /// The percentage of requests that are answered with 429 and a Retry-After of one second.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    throttle_percent: u8,
    /// The percentage of requests whose connection is closed after the request has been processed.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    drop_percent: u8,
    /// Seconds after which all watches are dropped, again and again. 0 for never.
    #[arg(long, default_value_t = 0)]
    drop_watches_seconds: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut builder = StandIn::builder().port(options.port);
    if options.anonymous_admin {
        builder = builder.anonymous(User::admin());
    }
    let server = builder.start().await?;
    for name in &options.create_node {
        server.create("/api/v1/nodes", json!({"metadata": {"name": name}})).map_err(|refusal| refusal.message)?;
    }
    server.faults().set_latency(Duration::from_millis(options.latency_ms));
    for (percent, fault) in [
        (options.fail_percent, Fault::status(500)),
        (options.throttle_percent, Fault::too_many_requests(1)),
        (options.drop_percent, Fault::DropAfter),
    ] {
        if percent > 0 {
            server.faults().inject(Rule::new().percent(percent), fault);
        }
    }
    let path = options.kubeconfig.unwrap_or_else(|| std::env::temp_dir().join("podwright-stand-in.kubeconfig"));
    server.write_kubeconfig(&path, &User::admin())?;
    println!("{}", path.display());
    for node in &options.node {
        let mut name = path.clone().into_os_string();
        name.push(format!(".{node}"));
        let path = PathBuf::from(name);
        server.write_kubeconfig(&path, &User::node(node))?;
        println!("{}", path.display());
    }
    eprintln!("serving on {}; end with Ctrl-C", server.url());
    let period = match options.drop_watches_seconds {
        0 => Duration::MAX,
        seconds => Duration::from_secs(seconds),
    };
    loop {
        tokio::select! {
            ended = tokio::signal::ctrl_c() => {
                ended?;
                server.stop().await;
                return Ok(());
            }
            () = tokio::time::sleep(period) => server.drop_watches(),
        }
    }
}
