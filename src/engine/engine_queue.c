/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_state.h"

/* Takes the lane's next job that no earlier run has done. */
static uint32_t lane_take(struct engine *engine, struct lane *lane)
{
    const uint8_t *is_done = engine->journal.is_done;
    while (lane->next_job < lane->end_job && is_done && is_done[lane->next_job])
        lane->next_job++;
    return lane->next_job < lane->end_job ? lane->next_job++ : JOB_NONE;
}

/* A job of any lane that may be shared. */
static uint32_t help_take(struct engine *engine, struct worker *worker)
{
    struct job_list *list = &engine->list;
    while (engine->help_lane < engine->fresh_lane && list->lanes[engine->help_lane].next_job == list->lanes[engine->help_lane].end_job)
        engine->help_lane++;
    for (uint32_t i = engine->help_lane; i < engine->fresh_lane; i++) {
        uint32_t job = list->lanes[i].is_exclusive ? JOB_NONE : lane_take(engine, &list->lanes[i]);
        if (job == JOB_NONE)
            continue;
        worker->lane = i;
        return job;
    }
    return JOB_NONE;
}

uint32_t queue_take(struct engine *engine, struct worker *worker)
{
    struct job_list *list = &engine->list;
    uint32_t job = JOB_NONE;
    pthread_mutex_lock(&engine->lock);
    if (!atomic_load(&engine->is_stopped)) {
        if (worker->lane != JOB_NONE)
            job = lane_take(engine, &list->lanes[worker->lane]);
        while (job == JOB_NONE && engine->fresh_lane < list->lane_count) {
            worker->lane = engine->fresh_lane++;
            job = lane_take(engine, &list->lanes[worker->lane]);
        }
        if (job == JOB_NONE)
            job = help_take(engine, worker);
    }
    pthread_mutex_unlock(&engine->lock);
    return job;
}

bool turn_wait(struct engine *engine, uint32_t job)
{
    const struct lane *lane = &engine->list.lanes[engine->list.jobs[job].lane];
    pthread_mutex_lock(&engine->lock);
    while (!atomic_load(&engine->is_stopped) && lane->next_turn != job)
        pthread_cond_wait(&engine->changed, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
    return !atomic_load(&engine->is_stopped);
}

void turn_end(struct engine *engine, uint32_t job)
{
    pthread_mutex_lock(&engine->lock);
    engine->list.lanes[engine->list.jobs[job].lane].next_turn = job + 1;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}
