/* SPDX-License-Identifier: BSD-3-Clause
 *
 * abi_types.c - the structures and enumerations of the public headers that no exported function
 * names in its type: functions take them as void *, as int, or within another one. scripts/abi
 * describes them by this file. It is not linked to anything.
 */
#include <bmi.h>
#include <bmi/flow.h>
#include <bmi/job.h>
#include <bmi/rpc.h>
#include <bmi/task.h>
#include <bmi/trove.h>

void bmi_abi_options(struct bmi_optimistic_buffer_info *, struct bmi_context_fd *,
                     struct bmi_setting *, struct bmi_peer_identity *, struct bmi_log_callback *,
                     struct bmi_statistics *, struct bmi_method_statistics *,
                     struct bmi_context_statistics *, enum bmi_log_level);
void bmi_abi_records(struct bmi_flow_stripe *, struct bmi_job_accepted *, struct bmi_job_request *);
void bmi_abi_flags(enum bmi_flow_flag, enum bmi_job_context_option, enum bmi_pack_mode,
                   enum bmi_rpc_service_option, enum bmi_task_option, enum bmi_trove_flag,
                   enum bmi_trove_kind);

void bmi_abi_options(struct bmi_optimistic_buffer_info *buffer, struct bmi_context_fd *fd,
                     struct bmi_setting *setting, struct bmi_peer_identity *identity,
                     struct bmi_log_callback *callback, struct bmi_statistics *statistics,
                     struct bmi_method_statistics *method, struct bmi_context_statistics *context,
                     enum bmi_log_level level)
{
    (void)buffer, (void)fd, (void)setting, (void)identity, (void)callback;
    (void)statistics, (void)method, (void)context, (void)level;
}

void bmi_abi_records(struct bmi_flow_stripe *stripe, struct bmi_job_accepted *accepted,
                     struct bmi_job_request *request)
{
    (void)stripe, (void)accepted, (void)request;
}

void bmi_abi_flags(enum bmi_flow_flag flow, enum bmi_job_context_option context,
                   enum bmi_pack_mode pack, enum bmi_rpc_service_option service,
                   enum bmi_task_option task, enum bmi_trove_flag trove, enum bmi_trove_kind kind)
{
    (void)flow, (void)context, (void)pack, (void)service, (void)task, (void)trove, (void)kind;
}
