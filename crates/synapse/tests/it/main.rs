//! The tests of synapse, with a client and a server over sockets and over a simulated network.

mod arbitrary;
mod chains;
mod checks;
mod conformance;
mod control;
mod costs;
mod faults;
mod faults_tcp;
mod grants;
mod history_check;
mod history_faults;
mod history_workload;
mod liveness;
mod refusals;
mod relay;
mod restarts;
mod sessions;
mod several_servers;
mod support;
mod traces;
mod vectors;
